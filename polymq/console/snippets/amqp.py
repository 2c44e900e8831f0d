"""AMQP 0-9-1. An exchange is a topic."""

from __future__ import annotations

from typing import Final

PROGRAMS: Final[dict[str, str]] = {
    "Python": """\
# pip install pika
?import os

import pika

parameters = pika.ConnectionParameters(
    $host,
    $port,
?    credentials=pika.PlainCredentials($user, os.environ["PASSWORD"]),
)
with pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.exchange_declare($topic, "topic", durable=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, $topic, "#")
    channel.confirm_delivery()
    channel.basic_publish($topic, "hello", b"hello")
    for method, properties, body in channel.consume(queue, auto_ack=True):
        print(method.routing_key, body.decode())
        break  # leave this out to go on
""",
    "Go": """\
// go get github.com/rabbitmq/amqp091-go
package main

import (
	"context"
	"fmt"
?	"net/url"
?	"os"

	amqp "github.com/rabbitmq/amqp091-go"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
!	connection, err := amqp.Dial(fmt.Sprintf("amqp://%s:%d/", $host, $port))
?	login := url.UserPassword($user, os.Getenv("PASSWORD"))
?	connection, err := amqp.Dial(fmt.Sprintf("amqp://%s@%s:%d/", login, $host, $port))
	check(err)
	defer connection.Close()
	channel, err := connection.Channel()
	check(err)
	check(channel.ExchangeDeclare($topic, "topic", true, false, false, false, nil))
	queue, err := channel.QueueDeclare("", false, false, true, false, nil)
	check(err)
	check(channel.QueueBind(queue.Name, "#", $topic, false, nil))
	messages, err := channel.Consume(queue.Name, "", true, true, false, false, nil)
	check(err)
	check(channel.Confirm(false))
	message := amqp.Publishing{Body: []byte("hello")}
	confirm, err := channel.PublishWithDeferredConfirm($topic, "hello", false, false, message)
	check(err)
	_, err = confirm.WaitContext(context.Background())
	check(err)
	received := <-messages
	fmt.Println(received.RoutingKey, string(received.Body))
}
""",
    "JavaScript": """\
// npm install amqplib
const amqp = require("amqplib");

async function main() {
  const connection = await amqp.connect({
    hostname: $host,
    port: $port,
?    username: $user,
?    password: process.env.PASSWORD,
  });
  const channel = await connection.createConfirmChannel();
  await channel.assertExchange($topic, "topic", { durable: true });
  const { queue } = await channel.assertQueue("", { exclusive: true });
  await channel.bindQueue(queue, $topic, "#");
  channel.publish($topic, "hello", Buffer.from("hello"));
  await channel.waitForConfirms();
  await channel.consume(
    queue,
    (message) => {
      console.log(message.fields.routingKey, message.content.toString());
      connection.close(); // leave this out to go on
    },
    { noAck: true },
  );
}

main();
""",
    "Java": """\
// com.rabbitmq:amqp-client
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.util.concurrent.CountDownLatch;

public class Hello {
    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost($host);
        factory.setPort($port);
?        factory.setUsername($user);
?        factory.setPassword(System.getenv("PASSWORD"));
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            channel.exchangeDeclare($topic, "topic", true);
            String queue = channel.queueDeclare().getQueue();
            channel.queueBind(queue, $topic, "#");
            CountDownLatch received = new CountDownLatch(1);
            channel.basicConsume(queue, true, (tag, message) -> {
                String key = message.getEnvelope().getRoutingKey();
                System.out.println(key + " " + new String(message.getBody(), "UTF-8"));
                received.countDown();
            }, tag -> { });
            channel.confirmSelect();
            channel.basicPublish($topic, "hello", null, "hello".getBytes("UTF-8"));
            channel.waitForConfirmsOrDie(10_000);
            received.await();
        }
    }
}
""",
    "Shell": """\
# apt install amqp-tools
amqp-consume --server $shell_host --port $port \\
?    --username $shell_user --password "$$PASSWORD" \\
    --exchange $shell_topic --routing-key '#' --count 1 cat &
sleep 1
amqp-publish --server $shell_host --port $port \\
?    --username $shell_user --password "$$PASSWORD" \\
    --exchange $shell_topic --routing-key hello --body hello
wait
""",
}
