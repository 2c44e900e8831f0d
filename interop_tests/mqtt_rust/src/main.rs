//! What a client does with a server, in rumqttc.
//!
//! Arguments: the version of MQTT (3 or 5) and the server's port. Prints a line of JSON for each
//! scenario: its name, and what went wrong if something did. A line {"kill": true} asks for the
//! server to be killed and started again, and waits for a line on the standard input that says that
//! this was done.

mod link;

use link::{Link, Message, Options, Outcome, PATIENCE};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io::Write;
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
struct Side {
    five: bool,
    port: u16,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let side = Side { five: arguments[1] == "5", port: arguments[2].parse().unwrap() };
    let common: [(&str, fn(Side) -> Outcome); 6] = [
        ("qos", qos),
        ("retained", retained),
        ("will", will),
        ("session", session),
        ("manual", manual),
        ("large", large),
    ];
    let of_mqtt_5: [(&str, fn(Side) -> Outcome); 5] = [
        ("properties", properties),
        ("expiry", expiry),
        ("aliases", aliases),
        ("receive_maximum", receive_maximum),
        ("options", options),
    ];
    let more = if side.five { &of_mqtt_5[..] } else { &[] };
    for (name, scenario) in common.iter().chain(more).chain(&[("kill", kill as _)]) {
        let error = scenario(side).err().unwrap_or_default();
        let error = error.replace(['"', '\\', '\n'], " ");
        say(&format!("{{\"scenario\": \"{name}\", \"error\": \"{error}\"}}"));
    }
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

fn expect<T: PartialEq + Debug>(wanted: T, found: T) -> Outcome {
    if wanted == found { Ok(()) } else { Err(format!("expected {wanted:?}, found {found:?}")) }
}

impl Side {
    fn open(self, name: &str) -> Outcome<Link> {
        self.open_with(name, &Options::default())
    }

    fn open_with(self, name: &str, options: &Options) -> Outcome<Link> {
        Link::open(self.five, self.port, name, options)
    }
}

fn lasting() -> Options {
    Options { lasting: true, ..Options::default() }
}

/// Every quality in both directions, in order; and the end of a subscription.
fn qos(side: Side) -> Outcome {
    let (mut reader, mut writer) = (side.open("reader")?, side.open("writer")?);
    for quality in 0..3 {
        reader.subscribe(&format!("rust/qos/{quality}/+"), quality)?;
        let topic = format!("rust/qos/{quality}/t");
        for number in 0..20 {
            writer.publish(&Message::new(&topic, &number.to_string(), quality))?;
        }
        for number in 0..20 {
            let message = reader.next()?;
            expect((topic.clone(), number.to_string()), (message.topic.clone(), message.text()))?;
            expect(quality, message.qos)?;
        }
    }
    reader.unsubscribe("rust/qos/1/+")?;
    writer.publish(&Message::new("rust/qos/1/t", "late", 1))?;
    writer.publish(&Message::new("rust/qos/2/t", "end", 2))?;
    expect("end".to_string(), reader.next()?.text())
}

/// What is retained comes with RETAIN, is replaced, and goes with an empty message.
fn retained(side: Side) -> Outcome {
    let mut writer = side.open("writer")?;
    for (topic, text, quality) in [("a", "old", 1), ("a", "new", 2), ("b", "gone", 1), ("b", "", 1)] {
        let topic = format!("rust/kept/{topic}");
        writer.publish(&Message::new(&topic, text, quality).retained())?;
    }
    let mut reader = side.open("reader")?;
    reader.subscribe("rust/kept/#", 1)?;
    let message = reader.next()?;
    expect(("new".to_string(), true), (message.text(), message.retain))?;
    writer.publish(&Message::new("rust/kept/a", "", 1).retained())?;
    expect(false, reader.next()?.retain)?;
    reader.expect_nothing()
}

/// It comes when a connection is cut, and not when it is closed in order.
fn will(side: Side) -> Outcome {
    let mut reader = side.open("reader")?;
    reader.subscribe("rust/will/#", 1)?;
    let mut options = Options::default();
    options.will = Some(Message::new("rust/will/polite", "never", 1));
    side.open_with("polite", &options)?.close()?;
    let mut last = Message::new("rust/will/cut", "gone", 1);
    last.user = vec![("why".to_string(), "cut".to_string())];
    options.will = Some(last.clone());
    drop(side.open_with("mortal", &options)?);
    let message = reader.next()?;
    expect((last.topic.clone(), last.text()), (message.topic.clone(), message.text()))?;
    if side.five {
        expect(last.user, message.user)?;
    }
    reader.expect_nothing()
}

/// It is found again with what came meanwhile; a clean start forgets it.
fn session(side: Side) -> Outcome {
    let mut away = side.open_with("away", &lasting())?;
    expect(false, away.present)?;
    away.subscribe("rust/session/#", 2)?;
    away.close()?;
    let mut writer = side.open("writer")?;
    for number in 0..20 {
        let text = number.to_string();
        writer.publish(&Message::new("rust/session/t", &text, 1 + number % 2))?;
    }
    let mut away = side.open_with("away", &lasting())?;
    expect(true, away.present)?;
    for number in 0..20 {
        let message = away.next()?;
        expect((number.to_string(), 1 + number % 2), (message.text(), message.qos))?;
    }
    away.close()?;
    let mut away = side.open("away")?;
    expect(false, away.present)?;
    writer.publish(&Message::new("rust/session/t", "lost", 1))?;
    away.expect_nothing()?;
    away.close()?;
    expect(false, side.open_with("away", &lasting())?.present)
}

/// What was not acknowledged comes again with the next connection, and what was does not.
fn manual(side: Side) -> Outcome {
    let options = Options { manual: true, ..lasting() };
    let mut reader = side.open_with("manual", &options)?;
    reader.subscribe("rust/manual/t", 1)?;
    let mut writer = side.open("writer")?;
    for number in 0..4 {
        writer.publish(&Message::new("rust/manual/t", &number.to_string(), 1))?;
    }
    for number in 0..4 {
        let message = reader.next()?;
        if number < 2 {
            reader.acknowledge(&message)?;
        }
    }
    // An acknowledgement has no answer, but what is published behind it has.
    reader.publish(&Message::new("rust/manual/other", "", 1))?;
    drop(reader);
    let mut reader = side.open_with("manual", &options)?;
    expect(true, reader.present)?;
    for number in 2..4 {
        let message = reader.next()?;
        expect(number.to_string(), message.text())?;
        reader.acknowledge(&message)?;
    }
    reader.close()
}

/// One and three MiB at QoS 2, in both directions.
fn large(side: Side) -> Outcome {
    let (mut reader, mut writer) = (side.open("reader")?, side.open("writer")?);
    reader.subscribe("rust/large", 2)?;
    for size in [1usize << 20, 3 << 20] {
        let mut message = Message::new("rust/large", "", 2);
        message.body = (0..size).map(|at| (at * 31 + (at >> 8)) as u8).collect();
        writer.publish(&message)?;
        expect(true, message.body == reader.next()?.body)?;
    }
    Ok(())
}

/// All properties of a message arrive as they were sent, in order.
fn properties(side: Side) -> Outcome {
    let (mut reader, mut writer) = (side.open("reader")?, side.open("writer")?);
    reader.subscribe("rust/properties", 1)?;
    let pairs = [("k", "1"), ("k", "2"), ("grüße", "你好"), ("empty", "")];
    let sent = Message {
        user: pairs.map(|(name, value)| (name.to_string(), value.to_string())).to_vec(),
        content_type: Some("text/plain".to_string()),
        response_topic: Some("answers/here".to_string()),
        correlation: Some(vec![0, 1, 255]),
        ..Message::new("rust/properties", "body", 1)
    };
    writer.publish(&sent)?;
    let found = reader.next()?;
    expect(sent.user, found.user)?;
    expect(sent.content_type, found.content_type)?;
    expect(sent.response_topic, found.response_topic)?;
    expect(sent.correlation, found.correlation)?;
    expect(None, found.expiry_seconds)
}

/// An expiry interval counts down while a message waits; and what has expired does not come.
fn expiry(side: Side) -> Outcome {
    let mut away = side.open_with("sleeper", &lasting())?;
    away.subscribe("rust/expiry", 1)?;
    away.close()?;
    let mut writer = side.open("writer")?;
    for seconds in [1, 100] {
        let mut message = Message::new("rust/expiry", &seconds.to_string(), 1);
        message.expiry_seconds = Some(seconds);
        writer.publish(&message)?;
    }
    std::thread::sleep(Duration::from_millis(1500));
    let mut away = side.open_with("sleeper", &lasting())?;
    let message = away.next()?;
    expect("100".to_string(), message.text())?;
    expect(true, message.expiry_seconds.is_some_and(|left| left > 0 && left <= 99))?;
    away.close()
}

/// A topic is named once, and from then on by its alias.
fn aliases(side: Side) -> Outcome {
    let (mut reader, mut writer) = (side.open("reader")?, side.open("writer")?);
    reader.subscribe("rust/alias/#", 1)?;
    for number in 0..20u16 {
        let topic = if number < 4 { format!("rust/alias/{number}") } else { String::new() };
        let mut message = Message::new(&topic, &number.to_string(), 1);
        message.alias = Some(1 + number % 4);
        writer.publish(&message)?;
    }
    for number in 0..20u16 {
        let message = reader.next()?;
        expect(format!("rust/alias/{}", number % 4), message.topic.clone())?;
        expect(number.to_string(), message.text())?;
    }
    Ok(())
}

/// No more than so many come without an acknowledgement, and all of them in the end.
fn receive_maximum(side: Side) -> Outcome {
    let options = Options { manual: true, receive_max: Some(3), ..Options::default() };
    let mut reader = side.open_with("reader", &options)?;
    reader.subscribe("rust/receive", 1)?;
    let mut writer = side.open("writer")?;
    for number in 0..12 {
        writer.publish(&Message::new("rust/receive", &number.to_string(), 1))?;
    }
    for begin in (0..12).step_by(3) {
        let held = [reader.next()?, reader.next()?, reader.next()?];
        reader.expect_nothing()?;
        for (index, message) in held.iter().enumerate() {
            expect((begin + index).to_string(), message.text())?;
            reader.acknowledge(message)?;
        }
    }
    Ok(())
}

/// No Local and Retain As Published.
fn options(side: Side) -> Outcome {
    let (mut both, mut other) = (side.open("both")?, side.open("other")?);
    both.subscribe_with("rust/options/quiet", 1, true, false)?;
    both.subscribe_with("rust/options/as", 1, false, true)?;
    both.publish(&Message::new("rust/options/quiet", "mine", 1))?;
    other.publish(&Message::new("rust/options/quiet", "yours", 1))?;
    expect("yours".to_string(), both.next()?.text())?;
    other.publish(&Message::new("rust/options/as", "x", 1).retained())?;
    expect(true, both.next()?.retain)?;
    other.publish(&Message::new("rust/options/as", "", 1).retained())?;
    expect(true, both.next()?.retain)?;
    both.expect_nothing()
}

/// The server is killed while a client publishes: both clients come back by themselves, and nothing
/// that was acknowledged is lost.
///
/// The reader asks for QoS 1. With a new connection rumqttc forgets which messages of QoS 2 wait for
/// their PUBREL, and takes one that comes again, as it has to, for an error (`Unsolicited`): it
/// closes, and does so each time that it comes back.
fn kill(side: Side) -> Outcome {
    let options = Options { reconnects: true, ..lasting() };
    let mut reader = side.open_with("survivor", &options)?;
    reader.subscribe("rust/kill", 1)?;
    let mut writer = side.open_with("publisher", &options)?;
    let mut acknowledged = BTreeSet::new();
    for number in 0..200 {
        if number == 100 {
            // What is published now is in flight when the server is killed.
            say("{\"kill\": true}");
        }
        writer.publish(&Message::new("rust/kill", &number.to_string(), 1 + number as u8 % 2))?;
        acknowledged.insert(number.to_string());
    }
    std::io::stdin().read_line(&mut String::new()).map_err(|error| error.to_string())?;
    for number in 200..220 {
        writer.publish(&Message::new("rust/kill", &number.to_string(), 1 + number as u8 % 2))?;
        acknowledged.insert(number.to_string());
    }
    let mut missing = acknowledged;
    let end = Instant::now() + PATIENCE;
    while !missing.is_empty() {
        missing.remove(&reader.next()?.text());
        if Instant::now() > end {
            return Err(format!("lost: {missing:?}"));
        }
    }
    Ok(())
}
