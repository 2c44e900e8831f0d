package main

import (
	"bytes"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"
)

func (l *link) next() *paho.Publish {
	select {
	case message := <-l.messages:
		return message
	case <-time.After(patience):
		fail("nothing came")
		return nil
	}
}

func (l *link) expectText(texts ...string) {
	for _, text := range texts {
		expect(text, string(l.next().Payload))
	}
}

func (l *link) expectNothing() {
	select {
	case message := <-l.messages:
		fail("%s came: %s", message.Topic, message.Payload)
	case <-time.After(quiet):
	}
}

// Every quality in both directions, in order; and the end of a subscription.
func qos() {
	reader, writer := open("reader", wish{}), open("writer", wish{})
	for quality := byte(0); quality < 3; quality++ {
		reader.subscribe(paho.SubscribeOptions{Topic: fmt.Sprintf("go/qos/%d/+", quality), QoS: quality})
		topic := fmt.Sprintf("go/qos/%d/t", quality)
		for number := range 20 {
			writer.send(topic, fmt.Sprint(number), quality)
		}
		for number := range 20 {
			message := reader.next()
			expect(fmt.Sprint(number), string(message.Payload))
			expect(quality, message.QoS)
			expect(topic, message.Topic)
		}
	}
	ctx, cancel := limited()
	defer cancel()
	_, err := reader.client.Unsubscribe(ctx, &paho.Unsubscribe{Topics: []string{"go/qos/1/+"}})
	must(err)
	writer.send("go/qos/1/t", "late", 1)
	writer.send("go/qos/2/t", "end", 2)
	reader.expectText("end")
}

// What is retained comes with RETAIN, is replaced, and goes with an empty message.
func retained() {
	writer := open("writer", wish{})
	writer.keep("go/kept/a", "old", 1)
	writer.keep("go/kept/a", "new", 2)
	writer.keep("go/kept/b", "gone", 1)
	writer.keep("go/kept/b", "", 1)
	reader := open("reader", wish{})
	reader.subscribe(paho.SubscribeOptions{Topic: "go/kept/#", QoS: 1})
	message := reader.next()
	expect("new", string(message.Payload))
	expect(true, message.Retain)
	writer.keep("go/kept/a", "", 1)
	expect(false, reader.next().Retain)
	// Retain Handling 2 asks for none of them.
	writer.keep("go/kept/a", "again", 1)
	reader.expectText("again")
	reader.subscribe(paho.SubscribeOptions{Topic: "go/kept/#", QoS: 1, RetainHandling: 2})
	reader.expectNothing()
	writer.keep("go/kept/a", "", 1)
}

// It comes when a connection is cut, and not when it is closed in order.
func will() {
	reader := open("reader", wish{})
	reader.subscribe(paho.SubscribeOptions{Topic: "go/will/#", QoS: 1})
	polite := open("polite", wish{will: &paho.WillMessage{Topic: "go/will/polite", QoS: 1}})
	polite.close()
	last := &paho.WillMessage{Topic: "go/will/cut", QoS: 1, Payload: []byte("gone")}
	open("mortal", wish{will: last, willUser: paho.UserProperties{{Key: "why", Value: "cut"}}}).cut()
	message := reader.next()
	expect("go/will/cut", message.Topic)
	expect("gone", string(message.Payload))
	expect("cut", message.Properties.User.Get("why"))
	reader.expectNothing()
}

// It is found again with what came meanwhile; a clean start forgets it.
func session() {
	known := state.NewInMemory()
	away := open("away", wish{lasting: true, session: known})
	expect(false, away.present)
	away.subscribe(paho.SubscribeOptions{Topic: "go/session/#", QoS: 2})
	away.close()
	writer := open("writer", wish{})
	for number := range 20 {
		writer.send("go/session/t", fmt.Sprint(number), byte(1+number%2))
	}
	away = open("away", wish{lasting: true, session: known})
	expect(true, away.present)
	for number := range 20 {
		message := away.next()
		expect(fmt.Sprint(number), string(message.Payload))
		expect(byte(1+number%2), message.QoS)
	}
	away.close()
	away = open("away", wish{})
	expect(false, away.present)
	writer.send("go/session/t", "lost", 1)
	away.expectNothing()
	away.close()
	away = open("away", wish{lasting: true})
	expect(false, away.present)
}

// What was not acknowledged comes again with the next connection, and what was does not.
func manual() {
	known := state.NewInMemory()
	wanted := wish{lasting: true, manual: true, receiveMax: 4, session: known}
	reader := open("manual", wanted)
	reader.subscribe(paho.SubscribeOptions{Topic: "go/manual/t", QoS: 1})
	writer := open("writer", wish{})
	for number := range 6 {
		writer.send("go/manual/t", fmt.Sprint(number), 1)
	}
	// The last two come when the server has the acknowledgements of the first two.
	for number := range 6 {
		message := reader.next()
		expect(fmt.Sprint(number), string(message.Payload))
		if number < 2 {
			must(reader.client.Ack(message))
		}
	}
	reader.cut()
	reader = open("manual", wanted)
	expect(true, reader.present)
	for number := 2; number < 6; number++ {
		message := reader.next()
		expect(fmt.Sprint(number), string(message.Payload))
		must(reader.client.Ack(message))
	}
}

// One and three MiB at QoS 2, in both directions.
func large() {
	reader, writer := open("reader", wish{}), open("writer", wish{})
	reader.subscribe(paho.SubscribeOptions{Topic: "go/large", QoS: 2})
	for _, size := range []int{1 << 20, 3 << 20} {
		body := make([]byte, size)
		for at := range body {
			body[at] = byte(at*31 + at>>8)
		}
		writer.publish(&paho.Publish{Topic: "go/large", QoS: 2, Payload: body})
		expect(true, bytes.Equal(body, reader.next().Payload))
	}
}

// All properties of a message arrive as they were sent, in order.
func properties() {
	reader, writer := open("reader", wish{}), open("writer", wish{})
	identifier := 268_435_455
	ctx, cancel := limited()
	defer cancel()
	_, err := reader.client.Subscribe(ctx, &paho.Subscribe{
		Properties:    &paho.SubscribeProperties{SubscriptionIdentifier: &identifier},
		Subscriptions: []paho.SubscribeOptions{{Topic: "go/properties", QoS: 1}},
	})
	must(err)
	format := byte(1)
	pairs := paho.UserProperties{
		{Key: "k", Value: "1"}, {Key: "k", Value: "2"}, {Key: "grüße", Value: "你好"}, {Key: "empty"},
	}
	writer.publish(&paho.Publish{
		Topic: "go/properties", QoS: 1, Payload: []byte("body"),
		Properties: &paho.PublishProperties{
			ContentType: "text/plain", ResponseTopic: "answers/here", PayloadFormat: &format,
			CorrelationData: []byte{0, 1, 255}, User: pairs,
		},
	})
	found := reader.next().Properties
	expect(fmt.Sprint(pairs), fmt.Sprint(found.User))
	expect("text/plain", found.ContentType)
	expect("answers/here", found.ResponseTopic)
	expect("\x00\x01\xff", string(found.CorrelationData))
	expect(byte(1), *found.PayloadFormat)
	expect(identifier, *found.SubscriptionIdentifier)
	expect(true, found.MessageExpiry == nil)
}

// An expiry interval counts down while a message waits; and what has expired does not come.
func expiry() {
	known := state.NewInMemory()
	away := open("sleeper", wish{lasting: true, session: known})
	away.subscribe(paho.SubscribeOptions{Topic: "go/expiry", QoS: 1})
	away.close()
	writer := open("writer", wish{})
	for _, seconds := range []uint32{1, 100} {
		writer.publish(&paho.Publish{
			Topic: "go/expiry", QoS: 1, Payload: []byte(fmt.Sprint(seconds)),
			Properties: &paho.PublishProperties{MessageExpiry: &seconds},
		})
	}
	time.Sleep(1500 * time.Millisecond)
	away = open("sleeper", wish{lasting: true, session: known})
	message := away.next()
	expect("100", string(message.Payload))
	left := *message.Properties.MessageExpiry
	expect(true, left > 0 && left <= 99)
}

// Publishes to few topics again and again, with aliases for some of them.
func aliases() {
	reader, writer := open("reader", wish{}), open("writer", wish{aliasMax: 5})
	reader.subscribe(paho.SubscribeOptions{Topic: "go/alias/#", QoS: 1})
	for number := range 40 {
		writer.send(fmt.Sprintf("go/alias/long/topic/%d", number%5), fmt.Sprint(number), 1)
	}
	for number := range 40 {
		message := reader.next()
		expect(fmt.Sprintf("go/alias/long/topic/%d", number%5), message.Topic)
		expect(fmt.Sprint(number), string(message.Payload))
	}
}

// No more than so many come without an acknowledgement, and all of them in the end.
func receiveMaximum() {
	reader := open("reader", wish{manual: true, receiveMax: 3})
	reader.subscribe(paho.SubscribeOptions{Topic: "go/receive", QoS: 1})
	writer := open("writer", wish{})
	for number := range 12 {
		writer.send("go/receive", fmt.Sprint(number), 1)
	}
	for begin := 0; begin < 12; begin += 3 {
		held := []*paho.Publish{reader.next(), reader.next(), reader.next()}
		reader.expectNothing()
		for index, message := range held {
			expect(fmt.Sprint(begin+index), string(message.Payload))
			must(reader.client.Ack(message))
		}
	}
}

// No Local and Retain As Published.
func options() {
	both, other := open("both", wish{}), open("other", wish{})
	both.subscribe(
		paho.SubscribeOptions{Topic: "go/options/quiet", QoS: 1, NoLocal: true},
		paho.SubscribeOptions{Topic: "go/options/as", QoS: 1, RetainAsPublished: true},
	)
	both.send("go/options/quiet", "mine", 1)
	other.send("go/options/quiet", "yours", 1)
	both.expectText("yours")
	other.keep("go/options/as", "x", 1)
	expect(true, both.next().Retain)
	other.keep("go/options/as", "", 1)
	expect(true, both.next().Retain)
	both.expectNothing()
}

// A request says where its answer goes, and the answer to what it belongs.
func request() {
	asking, answering := open("asking", wish{}), open("answering", wish{})
	asking.subscribe(paho.SubscribeOptions{Topic: "go/answers/mine", QoS: 1})
	answering.subscribe(paho.SubscribeOptions{Topic: "go/questions", QoS: 1})
	for number := range byte(5) {
		asking.publish(&paho.Publish{
			Topic: "go/questions", QoS: 1, Payload: []byte{number},
			Properties: &paho.PublishProperties{
				ResponseTopic: "go/answers/mine", CorrelationData: []byte{number},
			},
		})
		asked := answering.next()
		answering.publish(&paho.Publish{
			Topic: asked.Properties.ResponseTopic, QoS: 1, Payload: asked.Payload,
			Properties: &paho.PublishProperties{CorrelationData: asked.Properties.CorrelationData},
		})
		answer := asking.next()
		expect(number, answer.Payload[0])
		expect(number, answer.Properties.CorrelationData[0])
	}
}
