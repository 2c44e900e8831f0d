// What a client of MQTT 5 does with a server, in Eclipse's paho.golang.
//
// Argument: the server's port. Prints a line of JSON for each scenario: its name, and what went
// wrong if something did. A line {"kill": true} asks for the server to be killed and started
// again, and waits for a line on the standard input that says that this was done.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

const (
	patience = 20 * time.Second
	// quiet is how long nothing comes where nothing may come.
	quiet = 300 * time.Millisecond
)

// broken is what a scenario that finds something wrong panics with.
type broken string

func main() {
	address = "127.0.0.1:" + os.Args[1]
	for _, scenario := range []struct {
		name string
		run  func()
	}{
		{"qos", qos},
		{"retained", retained},
		{"will", will},
		{"session", session},
		{"manual", manual},
		{"large", large},
		{"properties", properties},
		{"expiry", expiry},
		{"aliases", aliases},
		{"receive_maximum", receiveMaximum},
		{"options", options},
		{"request", request},
		{"kill", kill},
	} {
		say(map[string]any{"scenario": scenario.name, "error": play(scenario.run)})
		closeAll()
	}
}

func say(line map[string]any) {
	data, _ := json.Marshal(line)
	fmt.Println(string(data))
}

func play(run func()) (wrong string) {
	defer func() {
		if found := recover(); found != nil {
			text, isOurs := found.(broken)
			if !isOurs {
				panic(found)
			}
			wrong = string(text)
		}
	}()
	run()
	return ""
}

func fail(format string, values ...any) {
	panic(broken(fmt.Sprintf(format, values...)))
}

func must(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func expect[T comparable](wanted, found T) {
	if wanted != found {
		fail("expected %v, found %v", wanted, found)
	}
}
