package main

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
)

// manage makes a client that comes back by itself, and finds its session again.
func manage(ctx context.Context, name string, take func(*paho.Publish)) *autopaho.ConnectionManager {
	server, err := url.Parse("mqtt://" + address)
	must(err)
	manager, err := autopaho.NewConnection(ctx, autopaho.ClientConfig{
		ServerUrls:                    []*url.URL{server},
		KeepAlive:                     20,
		CleanStartOnInitialConnection: true,
		SessionExpiryInterval:         300,
		ReconnectBackoff:              func(int) time.Duration { return 50 * time.Millisecond },
		ClientConfig: paho.ClientConfig{
			ClientID: "go-" + name,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){
				func(came paho.PublishReceived) (bool, error) {
					take(came.Packet)
					return true, nil
				},
			},
		},
	})
	must(err)
	waiting, cancel := limited()
	defer cancel()
	must(manager.AwaitConnection(waiting))
	return manager
}

// counted is a set of texts that several goroutines fill.
type counted struct {
	mutex sync.Mutex
	texts map[string]int
}

func (c *counted) add(text string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.texts[text]++
}

func (c *counted) count(text string) int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.texts[text]
}

// await waits until there are so many more.
func (c *counted) await(more int) {
	wanted := -1
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		c.mutex.Lock()
		size := len(c.texts)
		c.mutex.Unlock()
		if wanted < 0 {
			wanted = size + more
		}
		if size >= wanted {
			return
		}
	}
	fail("there are no %d more acknowledgements", more)
}

// The server is killed while a client publishes: both clients come back by themselves, and nothing
// that was acknowledged is lost; at QoS 2 nothing comes twice.
func kill() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	found := &counted{texts: map[string]int{}}
	reader := manage(ctx, "survivor", func(message *paho.Publish) {
		found.add(fmt.Sprintf("%d:%s", message.QoS, message.Payload))
	})
	_, err := reader.Subscribe(ctx, &paho.Subscribe{
		Subscriptions: []paho.SubscribeOptions{{Topic: "go/kill", QoS: 2}},
	})
	must(err)
	writer := manage(ctx, "publisher", func(*paho.Publish) {})
	acknowledged := &counted{texts: map[string]int{}}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for number := 0; ; number++ {
			select {
			case <-stop:
				return
			default:
			}
			message := &paho.Publish{
				Topic: "go/kill", QoS: byte(1 + number%2), Payload: []byte(fmt.Sprint(number)),
			}
			waiting, done := limited()
			if _, err := writer.Publish(waiting, message); err == nil {
				acknowledged.add(fmt.Sprintf("%d:%s", message.QoS, message.Payload))
			} else {
				time.Sleep(20 * time.Millisecond) // there is no connection just now
			}
			done()
		}
	}()
	acknowledged.await(100)
	say(map[string]any{"kill": true})
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	must(err)
	acknowledged.await(100)
	close(stop)
	<-stopped
	end := time.Now().Add(patience)
	for text := range acknowledged.texts {
		for found.count(text) == 0 {
			if time.Now().After(end) {
				fail("lost: %s", text)
			}
			time.Sleep(time.Millisecond)
		}
	}
	for text := range acknowledged.texts {
		if text[0] == '2' && found.count(text) > 1 {
			fail("twice: %s", text)
		}
	}
	waiting, done := limited()
	defer done()
	must(reader.Disconnect(waiting))
	must(writer.Disconnect(waiting))
}
