"""RocketMQ's remoting protocol, and what reads it: the client, the sink, and Spark."""

from __future__ import annotations

from typing import Final

PROGRAMS: Final[dict[str, str]] = {
    "Python": """\
# pip install polymq
?import os
import queue

from polymq.client import Begin, ClientOptions, ConsumerSettings, Message
from polymq.client.threads import open_consumer, open_producer

OPTIONS = ClientOptions(
    name_servers=$address,
?    access_key=os.environ["ACCESS_KEY"],
?    secret_key=os.environ["SECRET_KEY"],
)
with open_producer("hello-producers", OPTIONS) as producer:
    producer.send(Message(topic=$topic, tag="hello", body=b"hello"))
received = queue.Queue()
begin = ConsumerSettings(begin=Begin.FIRST)
with open_consumer("hello-group", {$topic: "*"}, received.put, OPTIONS, settings=begin):
    print(received.get(timeout=60).body.decode())
""",
    "Go": """\
// go get github.com/apache/rocketmq-client-go/v2
package main

import (
	"context"
	"fmt"
?	"os"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func main() {
	made, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{$address}),
		producer.WithGroupName("hello-producers"),
?		producer.WithCredentials(primitive.Credentials{
?			AccessKey: os.Getenv("ACCESS_KEY"), SecretKey: os.Getenv("SECRET_KEY"),
?		}),
	)
	if err != nil {
		panic(err)
	}
	if err = made.Start(); err != nil {
		panic(err)
	}
	defer made.Shutdown()
	message := primitive.NewMessage($topic, []byte("hello")).WithTag("hello")
	sent, err := made.SendSync(context.Background(), message)
	if err != nil {
		panic(err)
	}
	fmt.Println(sent)
}
""",
    "Java": """\
// org.apache.rocketmq:rocketmq-client
?import org.apache.rocketmq.acl.common.AclClientRPCHook;
?import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

public class Hello {
    public static void main(String[] arguments) throws Exception {
!        DefaultMQProducer producer = new DefaultMQProducer("hello-producers");
?        SessionCredentials credentials = new SessionCredentials(
?            System.getenv("ACCESS_KEY"), System.getenv("SECRET_KEY"));
?        DefaultMQProducer producer =
?            new DefaultMQProducer("hello-producers", new AclClientRPCHook(credentials));
        producer.setNamesrvAddr($address);
        producer.start();
        byte[] body = "hello".getBytes("UTF-8");
        System.out.println(producer.send(new Message($topic, "hello", body)));
        producer.shutdown();
    }
}
""",
    "Shell": """\
# on the machine of the server, as the account that it runs as
polymq message publish $shell_topic hello hello
polymq message read $shell_topic --format body \\
?    --access-key "$$ACCESS_KEY" --secret-key-file secret.key \\
    --count 1
""",
}
SPARK: Final[dict[str, str]] = {
    "Python": """\
# pip install 'polymq[spark]'
?import os

from pyspark.sql import SparkSession

from polymq.spark_sink import register

spark = SparkSession.builder.master("local[1]").getOrCreate()
register(spark)
table = spark.read.format("polymq").option("broker", $address).option("topic", $topic)
?table = table.option("accessKey", os.environ["ACCESS_KEY"])
?table = table.option("secretKey", os.environ["SECRET_KEY"])
table.load().show()
spark.stop()
""",
    "Shell": """\
# pip install 'polymq[spark]'
polymq sink --broker $shell_address --topic $shell_topic \\
?    --access-key "$$ACCESS_KEY" --secret-key-file secret.key \\
    --once --output lake --checkpoint lake-checkpoint
""",
}
