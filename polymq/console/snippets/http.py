"""CloudEvents over HTTP."""

from __future__ import annotations

from typing import Final

PROGRAMS: Final[dict[str, str]] = {
    "Python": """\
?import base64
import json
?import os
import urllib.request

URL = $url
HEADERS = {"Content-Type": "application/json"}
?LOGIN = ($user + ":" + os.environ["PASSWORD"]).encode()
?HEADERS["Authorization"] = "Basic " + base64.b64encode(LOGIN).decode()


def ask(method, path, value=None, headers=None):
    body = None if value is None else json.dumps(value).encode()
    wanted = {**HEADERS, **(headers or {})}
    request = urllib.request.Request(URL + path, body, wanted, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or b"null")


ask("PUT", "/subscriptions/hello", {"topic": $topic})
event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/console", "ce-type": "hello"}
ask("POST", $topic_path, {"text": "hello"}, event)
received = ask("POST", $subscription_path + ":receive")
for one in received["value"]:
    print(one["event"]["type"], one["event"]["data"])
tokens = [one["brokerProperties"]["lockToken"] for one in received["value"]]
ask("POST", $subscription_path + ":acknowledge", {"lockTokens": tokens})
""",
    "Go": """\
package main

import (
	"fmt"
	"io"
	"net/http"
?	"os"
	"strings"
)

const url = $url

func ask(method, path, body string, headers map[string]string) string {
	request, err := http.NewRequest(method, url+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Content-Type", "application/json")
?	request.SetBasicAuth($user, os.Getenv("PASSWORD"))
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode >= 300 {
		panic(fmt.Sprint(answer.Status, err, string(content)))
	}
	return string(content)
}

func main() {
	ask("PUT", "/subscriptions/hello", $subscription, nil)
	ask("POST", $topic_path, `{"text": "hello"}`, map[string]string{
		"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/console", "ce-type": "hello",
	})
	// The answer has lock tokens, with which the events are acknowledged.
	fmt.Println(ask("POST", $subscription_path+":receive", "", nil))
}
""",
    "JavaScript": """\
const url = $url;
const headers = { "Content-Type": "application/json" };
?const login = Buffer.from($user + ":" + process.env.PASSWORD);
?headers.Authorization = "Basic " + login.toString("base64");

async function ask(method, path, value, more) {
  const body = value && JSON.stringify(value);
  const answer = await fetch(url + path, { method, body, headers: { ...headers, ...more } });
  const text = await answer.text();
  if (!answer.ok) throw new Error(text);
  return text && JSON.parse(text);
}

async function main() {
  await ask("PUT", "/subscriptions/hello", { topic: $topic });
  await ask("POST", $topic_path, { text: "hello" }, {
    "ce-specversion": "1.0", "ce-id": "1", "ce-source": "/console", "ce-type": "hello",
  });
  const { value } = await ask("POST", $subscription_path + ":receive");
  for (const { event } of value) console.log(event.type, event.data);
  const lockTokens = value.map((one) => one.brokerProperties.lockToken);
  await ask("POST", $subscription_path + ":acknowledge", { lockTokens });
}

main();
""",
    "Java": """\
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
?import java.util.Base64;

public class Hello {
    static final String URL = $url;

    static String ask(String method, String path, String body, String... more) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(URL + path))
            .method(method, BodyPublishers.ofString(body))
            .header("Content-Type", "application/json");
?        String login = $user + ":" + System.getenv("PASSWORD");
?        String encoded = Base64.getEncoder().encodeToString(login.getBytes("UTF-8"));
?        request.header("Authorization", "Basic " + encoded);
        for (int at = 0; at < more.length; at += 2) {
            request.header(more[at], more[at + 1]);
        }
        var answer = HttpClient.newHttpClient().send(request.build(), BodyHandlers.ofString());
        if (answer.statusCode() >= 300) {
            throw new IllegalStateException(answer.body());
        }
        return answer.body();
    }

    public static void main(String[] arguments) throws Exception {
        ask("PUT", "/subscriptions/hello", $subscription);
        ask("POST", $topic_path, "{\\"text\\": \\"hello\\"}", "ce-specversion", "1.0",
            "ce-id", "1", "ce-source", "/console", "ce-type", "hello");
        // The answer has lock tokens, with which the events are acknowledged.
        System.out.println(ask("POST", $subscription_path + ":receive", ""));
    }
}
""",
    "Shell": """\
curl -sS -X PUT $shell_url/subscriptions/hello \\
?    -u $shell_user:"$$PASSWORD" \\
    -d $shell_subscription
curl -sS $shell_topic_url \\
?    -u $shell_user:"$$PASSWORD" \\
    -H 'Content-Type: text/plain' -H 'ce-specversion: 1.0' -H 'ce-id: 1' \\
    -H 'ce-source: /console' -H 'ce-type: hello' -d hello
curl -sS -X POST $shell_subscription_url:receive \\
?    -u $shell_user:"$$PASSWORD" \\
    -H 'Content-Type: application/json'
""",
}
