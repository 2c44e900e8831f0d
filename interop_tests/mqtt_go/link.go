package main

import (
	"context"
	"net"

	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/extensions/topicaliases"
	"github.com/eclipse/paho.golang/paho/session/state"
)

var (
	address string
	opened  []*link
)

// link is a client and its connection.
type link struct {
	client   *paho.Client
	conn     net.Conn
	messages chan *paho.Publish
	present  bool
}

// wish is what a connection asks for.
type wish struct {
	lasting    bool
	manual     bool
	receiveMax uint16
	aliasMax   uint16
	will       *paho.WillMessage
	willUser   paho.UserProperties
	// session is what the client knows from its connection before.
	session *state.State
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func open(name string, wanted wish) *link {
	ctx, cancel := limited()
	defer cancel()
	conn, err := net.Dial("tcp", address)
	must(err)
	made := &link{conn: conn, messages: make(chan *paho.Publish, 10_000)}
	config := paho.ClientConfig{
		Conn:                       conn,
		EnableManualAcknowledgment: wanted.manual,
		PacketTimeout:              patience,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){
			func(came paho.PublishReceived) (bool, error) {
				made.messages <- came.Packet
				return true, nil
			},
		},
	}
	if wanted.session != nil {
		config.Session = wanted.session
	}
	if wanted.aliasMax > 0 {
		config.PublishHook = topicaliases.NewTAHandler(wanted.aliasMax).PublishHook
	}
	made.client = paho.NewClient(config)
	connect := &paho.Connect{
		ClientID:    "go-" + name,
		CleanStart:  !wanted.lasting,
		KeepAlive:   60,
		Properties:  &paho.ConnectProperties{RequestProblemInfo: true},
		WillMessage: wanted.will,
	}
	if wanted.lasting {
		seconds := uint32(300)
		connect.Properties.SessionExpiryInterval = &seconds
	}
	if wanted.receiveMax > 0 {
		connect.Properties.ReceiveMaximum = &wanted.receiveMax
	}
	if wanted.will != nil {
		connect.WillProperties = &paho.WillProperties{User: wanted.willUser}
	}
	connack, err := made.client.Connect(ctx, connect)
	must(err)
	made.present = connack.SessionPresent
	opened = append(opened, made)
	return made
}

func closeAll() {
	for _, one := range opened {
		one.close()
	}
	opened = nil
}

func (l *link) close() {
	_ = l.client.Disconnect(&paho.Disconnect{})
	_ = l.conn.Close()
}

// cut ends the connection without a goodbye.
func (l *link) cut() {
	_ = l.conn.Close()
	<-l.client.Done()
}

func (l *link) subscribe(filters ...paho.SubscribeOptions) {
	ctx, cancel := limited()
	defer cancel()
	suback, err := l.client.Subscribe(ctx, &paho.Subscribe{Subscriptions: filters})
	must(err)
	for index, filter := range filters {
		expect(filter.QoS, suback.Reasons[index])
	}
}

func (l *link) publish(message *paho.Publish) {
	ctx, cancel := limited()
	defer cancel()
	_, err := l.client.Publish(ctx, message)
	must(err)
}

// send publishes a text.
func (l *link) send(topic, text string, qos byte) {
	l.publish(&paho.Publish{Topic: topic, QoS: qos, Payload: []byte(text)})
}

// keep publishes a text that is retained.
func (l *link) keep(topic, text string, qos byte) {
	l.publish(&paho.Publish{Topic: topic, QoS: qos, Retain: true, Payload: []byte(text)})
}
