// What rabbit-hole, RabbitMQ's management client for Go, does with a server. Terraform's provider
// is built on it.
//
// Argument: the port of the management API. Prints a line of JSON for each scenario: its name, and
// what went wrong if something did.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"

	rabbithole "github.com/michaelklishin/rabbit-hole/v2"
)

// broken is what a scenario that finds something wrong panics with.
type broken string

var client *rabbithole.Client

func main() {
	made, err := rabbithole.NewClient("http://127.0.0.1:"+os.Args[1], "guest", "guest")
	if err != nil {
		panic(err)
	}
	client = made
	for _, scenario := range []struct {
		name string
		run  func()
	}{
		{"overview", overview},
		{"queues", queues},
		{"bindings", bindings},
		{"health", health},
		{"absent", absent},
		{"definitions", definitions},
		{"users", users}, // last: from the first user on, all have to log in
	} {
		line, _ := json.Marshal(map[string]string{
			"scenario": scenario.name, "error": play(scenario.run),
		})
		fmt.Println(string(line))
	}
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

func check(isRight bool, format string, values ...any) {
	if !isRight {
		panic(broken(fmt.Sprintf(format, values...)))
	}
}

// good returns a value that came without an error.
func good[T any](value T, err error) T {
	check(err == nil, "%v", err)
	return value
}

func status(response *http.Response, err error) int {
	check(err == nil, "%v", err)
	return response.StatusCode
}

func overview() {
	found := good(client.Overview())
	check(found.RabbitMQVersion != "" && found.Node != "", "overview: %+v", found)
	check(len(found.ExchangeTypes) >= 4, "exchange types: %v", found.ExchangeTypes)
	node := good(client.GetNode(found.Node))
	check(node.IsRunning && node.Name == found.Node, "node: %+v", node)
	check(len(good(client.ListNodes())) == 1, "there is one node")
	ports := good(client.ProtocolPorts())
	check(ports["amqp"] > 0 && ports["http"] > 0, "ports: %v", ports)
	check(good(client.GetClusterName()).Name != "", "the cluster has a name")
	check(good(client.Whoami()).Name == "guest", "whoami")
	check(good(client.GetVhost("/")).Name == "/", "vhost")
	check(len(good(client.ListConnections())) == 0, "nobody is connected")
}

func queues() {
	settings := rabbithole.QueueSettings{
		Type: "quorum", Durable: true, Arguments: map[string]any{"x-max-length": 10},
	}
	check(status(client.DeclareQueue("/", "go/1", settings)) == 201, "it is new")
	check(status(client.DeclareQueue("/", "go/1", settings)) == 204, "it is there")
	found := good(client.GetQueue("/", "go/1"))
	check(found.Type == "quorum" && found.Durable, "queue: %+v", found)
	check(found.Arguments["x-max-length"] == 10.0, "arguments: %v", found.Arguments)
	check(found.Leader == found.Node && len(found.Members) == 1, "members: %+v", found)
	params := url.Values{"page": {"1"}, "page_size": {"1"}, "name": {"^go"}, "use_regex": {"true"}}
	page := good(client.PagedListQueuesWithParametersIn("/", params))
	check(page.FilteredCount == 1 && page.Items[0].Name == "go/1", "page: %+v", page)
	check(status(client.PurgeQueue("/", "go/1")) == 204, "purge")
	check(status(client.SyncQueue("/", "go/1")) == 204, "sync")
	options := rabbithole.QueueDeleteOptions{IfEmpty: true, IfUnused: true}
	check(status(client.DeleteQueue("/", "go/1", options)) == 204, "delete")
	_, err := client.GetQueue("/", "go/1")
	answer, isAnswer := err.(rabbithole.ErrorResponse)
	check(isAnswer && answer.StatusCode == 404, "a queue that is gone: %v", err)
}

func bindings() {
	good(client.DeclareExchange("/", "go.shop", rabbithole.ExchangeSettings{Type: "topic", Durable: true}))
	good(client.DeclareExchange("/", "go.copy", rabbithole.ExchangeSettings{Type: "fanout"}))
	good(client.DeclareQueue("/", "go.orders", rabbithole.QueueSettings{Durable: true}))
	check(good(client.GetExchange("/", "go.shop")).Type == "topic", "exchange")
	one := rabbithole.BindingInfo{
		Source: "go.shop", Destination: "go.orders", DestinationType: "queue",
		RoutingKey: "#", Arguments: map[string]any{"one": "two"},
	}
	other := rabbithole.BindingInfo{
		Source: "go.shop", Destination: "go.copy", DestinationType: "exchange", RoutingKey: "a.*",
	}
	for _, binding := range []rabbithole.BindingInfo{one, other} {
		good(client.DeclareBinding("/", binding))
	}
	check(len(good(client.ListExchangeBindingsWithSource("/", "go.shop"))) == 2, "by source")
	found := good(client.ListQueueBindingsBetween("/", "go.shop", "go.orders"))
	check(len(found) == 1 && found[0].Arguments["one"] == "two", "between: %+v", found)
	found = append(found, good(client.ListExchangeBindingsBetween("/", "go.shop", "go.copy"))...)
	for _, binding := range found {
		check(status(client.DeleteBinding("/", binding)) == 204, "delete %+v", binding)
	}
	check(len(good(client.ListExchangeBindingsWithSource("/", "go.shop"))) == 0, "none is left")
	good(client.DeleteExchange("/", "go.copy"))
}

func health() {
	check(good(client.HealthCheckAlarms()).Status == "ok", "alarms")
	check(good(client.HealthCheckVirtualHosts()).Status == "ok", "virtual hosts")
	check(good(client.HealthCheckNodeIsQuorumCritical()).Status == "ok", "quorum")
	check(good(client.HealthCheckProtocolListener(rabbithole.AMQP)).Status == "ok", "amqp")
	closed := good(client.HealthCheckPortListener(1))
	check(closed.Status == "failed" && closed.Missing == 1, "a closed port: %+v", closed)
}

func absent() {
	check(len(good(client.ListPolicies())) == 0, "policies")
	check(len(good(client.ListRuntimeParameters())) == 0, "parameters")
	policy := rabbithole.Policy{Pattern: ".*", Definition: rabbithole.PolicyDefinition{"expires": 5}}
	_, err := client.PutPolicy("/", "go", policy)
	answer, isAnswer := err.(rabbithole.ErrorResponse)
	check(isAnswer && answer.StatusCode == 400 && answer.Reason != "", "a policy: %v", err)
}

func definitions() {
	found := good(client.ListDefinitions())
	check(len(*found.Queues) == 1 && len(*found.Exchanges) == 1, "definitions: %+v", found)
	check(status(client.UploadDefinitions(found)) == 204, "its own definitions")
}

func users() {
	root := rabbithole.UserSettings{Password: "go-secret", Tags: rabbithole.UserTags{"administrator"}}
	check(status(client.PutUser("go-root", root)) == 201, "a user")
	client.Username, client.Password = "go-root", "go-secret"
	hash := rabbithole.Base64EncodedSaltedPasswordHashSHA512("go-old")
	hashed := rabbithole.UserSettings{
		PasswordHash: hash, HashingAlgorithm: rabbithole.HashingAlgorithmSHA512,
		Tags: rabbithole.UserTags{"monitoring"},
	}
	check(status(client.PutUser("go-hashed", hashed)) == 201, "a user with a hash")
	wanted := rabbithole.Permissions{Configure: "^go", Write: ".*", Read: "^(a|b)$"}
	check(status(client.UpdatePermissionsIn("/", "go-hashed", wanted)) == 201, "permissions")
	found := good(client.GetPermissionsIn("/", "go-hashed"))
	check(found.Configure == "^go" && found.Read == "^(a|b)$", "permissions: %+v", found)
	other := good(rabbithole.NewClient(client.Endpoint, "go-hashed", "go-old"))
	check(good(other.Whoami()).Tags[0] == "monitoring", "whoami")
	check(status(client.ClearPermissionsIn("/", "go-hashed")) == 204, "no permissions")
	check(status(client.DeleteUser("go-hashed")) == 204, "delete")
	check(len(good(client.ListUsers())) == 1, "one user is left")
}
