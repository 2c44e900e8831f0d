"""MQTT."""

from __future__ import annotations

from typing import Final

PROGRAMS: Final[dict[str, str]] = {
    "Python": """\
# pip install paho-mqtt
?import os

import paho.mqtt.client as mqtt


def connected(client, userdata, flags, reason, properties):
    client.subscribe($filter, qos=1)


def subscribed(client, userdata, packet_id, reasons, properties):
    client.publish($mqtt_topic, "hello", qos=1)


def received(client, userdata, message):
    print(message.topic, message.payload.decode(), flush=True)
    client.disconnect()  # leave this out to go on


client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
?client.username_pw_set($user, os.environ["PASSWORD"])
client.on_connect, client.on_subscribe, client.on_message = connected, subscribed, received
client.connect($host, $port)
client.loop_forever()
""",
    "Go": """\
// go get github.com/eclipse/paho.mqtt.golang
package main

import (
	"fmt"
?	"os"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

func done(token mqtt.Token) {
	if token.Wait() && token.Error() != nil {
		panic(token.Error())
	}
}

func main() {
	options := mqtt.NewClientOptions().AddBroker(fmt.Sprintf("tcp://%s:%d", $host, $port))
?	options.SetUsername($user).SetPassword(os.Getenv("PASSWORD"))
	client := mqtt.NewClient(options)
	done(client.Connect())
	received := make(chan mqtt.Message)
	done(client.Subscribe($filter, 1, func(_ mqtt.Client, message mqtt.Message) {
		received <- message
	}))
	done(client.Publish($mqtt_topic, 1, false, "hello"))
	message := <-received
	fmt.Println(message.Topic(), string(message.Payload()))
	client.Disconnect(250)
}
""",
    "JavaScript": """\
// npm install mqtt
const mqtt = require("mqtt");

const client = mqtt.connect({
  host: $host,
  port: $port,
?  username: $user,
?  password: process.env.PASSWORD,
});
client.on("connect", () => {
  client.subscribe($filter, { qos: 1 }, () => {
    client.publish($mqtt_topic, "hello", { qos: 1 });
  });
});
client.on("message", (topic, payload) => {
  console.log(topic, payload.toString());
  client.end(); // leave this out to go on
});
""",
    "Java": """\
// org.eclipse.paho:org.eclipse.paho.client.mqttv3
import java.util.concurrent.CountDownLatch;
import org.eclipse.paho.client.mqttv3.MqttClient;
import org.eclipse.paho.client.mqttv3.MqttConnectOptions;
import org.eclipse.paho.client.mqttv3.persist.MemoryPersistence;

public class Hello {
    public static void main(String[] arguments) throws Exception {
        String server = "tcp://" + $host + ":" + $port;
        String name = MqttClient.generateClientId();
        MqttClient client = new MqttClient(server, name, new MemoryPersistence());
        MqttConnectOptions options = new MqttConnectOptions();
?        options.setUserName($user);
?        options.setPassword(System.getenv("PASSWORD").toCharArray());
        client.connect(options);
        CountDownLatch received = new CountDownLatch(1);
        client.subscribe($filter, 1, (topic, message) -> {
            System.out.println(topic + " " + message);
            received.countDown();
        });
        client.publish($mqtt_topic, "hello".getBytes("UTF-8"), 1, false);
        received.await();
        client.disconnect();
        client.close();
    }
}
""",
    "Shell": """\
# apt install mosquitto-clients
mosquitto_sub -h $shell_host -p $port \\
?    -u $shell_user -P "$$PASSWORD" \\
    -q 1 -v -C 1 -t $shell_filter &
sleep 1
mosquitto_pub -h $shell_host -p $port \\
?    -u $shell_user -P "$$PASSWORD" \\
    -q 1 -t $shell_mqtt_topic -m hello
wait
""",
}
