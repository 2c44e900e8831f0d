//! A client of either version, with the same calls. They wait until the server has answered.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing comes where nothing may come.
pub const QUIET: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(20);
const PACKET_BYTES_MAX: usize = 8 << 20;

pub type Outcome<T = ()> = Result<T, String>;

#[derive(Clone, Debug, Default)]
pub struct Message {
    pub topic: String,
    pub body: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub user: Vec<(String, String)>,
    pub content_type: Option<String>,
    pub response_topic: Option<String>,
    pub correlation: Option<Vec<u8>>,
    pub expiry_seconds: Option<u32>,
    pub alias: Option<u16>,
    /// What acknowledges it, where the client does not do that by itself.
    pub number: usize,
}

impl Message {
    pub fn new(topic: &str, body: &str, qos: u8) -> Message {
        let (topic, body) = (topic.to_string(), body.as_bytes().to_vec());
        Message { topic, body, qos, ..Message::default() }
    }

    pub fn retained(mut self) -> Message {
        self.retain = true;
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What a connection asks for.
#[derive(Clone, Default)]
pub struct Options {
    pub lasting: bool,
    pub manual: bool,
    pub reconnects: bool,
    pub receive_max: Option<u16>,
    pub alias_max: Option<u16>,
    pub will: Option<Message>,
}

/// What a client's own thread has seen.
pub enum Seen {
    Connected(bool),
    Came(Message),
    Acknowledged,
    Answered(bool),
    Gone(String),
}

pub struct Link {
    client: Box<dyn Calls>,
    seen: Receiver<Seen>,
    waiting: VecDeque<Message>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    pub present: bool,
}

/// What the two versions of the library do in their own types.
trait Calls {
    fn publish(&self, message: &Message) -> Outcome;
    fn subscribe(&self, filter: &str, qos: u8, no_local: bool, as_published: bool) -> Outcome;
    fn unsubscribe(&self, filter: &str) -> Outcome;
    fn acknowledge(&self, message: &Message) -> Outcome;
    fn disconnect(&self) -> Outcome;
}

impl Link {
    pub fn open(five: bool, port: u16, name: &str, options: &Options) -> Outcome<Link> {
        let name = format!("rust{}-{name}", if five { 5 } else { 3 });
        let (say, seen) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (client, thread) = if five {
            v5::start(port, &name, options, say, stop.clone())
        } else {
            v3::start(port, &name, options, say, stop.clone())
        };
        let (waiting, thread) = (VecDeque::new(), Some(thread));
        let mut link = Link { client, seen, waiting, stop, thread, present: false };
        link.present = link.until(|seen| match seen {
            Seen::Connected(present) => Some(*present),
            _ => None,
        })?;
        Ok(link)
    }

    fn until<T>(&mut self, wanted: impl Fn(&Seen) -> Option<T>) -> Outcome<T> {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let seen = self.seen.recv_timeout(left).map_err(|_| "nothing came".to_string())?;
            let found = wanted(&seen);
            match seen {
                Seen::Came(message) => self.waiting.push_back(message),
                Seen::Gone(why) => return Err(why),
                _ => {}
            }
            if let Some(value) = found {
                return Ok(value);
            }
        }
    }

    pub fn publish(&mut self, message: &Message) -> Outcome {
        self.client.publish(message)?;
        self.until(|seen| matches!(seen, Seen::Acknowledged).then_some(()))
    }

    pub fn subscribe_with(
        &mut self, filter: &str, qos: u8, no_local: bool, as_published: bool,
    ) -> Outcome {
        self.client.subscribe(filter, qos, no_local, as_published)?;
        self.answer()
    }

    pub fn subscribe(&mut self, filter: &str, qos: u8) -> Outcome {
        self.subscribe_with(filter, qos, false, false)
    }

    pub fn unsubscribe(&mut self, filter: &str) -> Outcome {
        self.client.unsubscribe(filter)?;
        self.answer()
    }

    fn answer(&mut self) -> Outcome {
        let granted = self.until(|seen| match seen {
            Seen::Answered(granted) => Some(*granted),
            _ => None,
        })?;
        if granted { Ok(()) } else { Err("it was refused".to_string()) }
    }

    pub fn acknowledge(&self, message: &Message) -> Outcome {
        self.client.acknowledge(message)
    }

    pub fn next(&mut self) -> Outcome<Message> {
        while self.waiting.is_empty() {
            self.until(|seen| matches!(seen, Seen::Came(_)).then_some(()))?;
        }
        Ok(self.waiting.pop_front().unwrap())
    }

    pub fn expect_nothing(&mut self) -> Outcome {
        while let Ok(seen) = self.seen.recv_timeout(QUIET) {
            if let Seen::Came(message) = seen {
                self.waiting.push_back(message);
                break;
            }
        }
        self.waiting.front().map_or(Ok(()), |one| Err(format!("{} came: {}", one.topic, one.text())))
    }

    /// Say goodbye, and end.
    pub fn close(mut self) -> Outcome {
        self.client.disconnect()?;
        while let Ok(seen) = self.seen.recv_timeout(PATIENCE) {
            if let Seen::Gone(_) = seen {
                break;
            }
        }
        self.end();
        Ok(())
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Drop for Link {
    /// Without a goodbye.
    fn drop(&mut self) {
        self.end();
    }
}

macro_rules! start {
    ($made:ident, $seen:ident) => {
        pub fn start(
            port: u16, name: &str, options: &Options, say: Sender<Seen>, stop: Arc<AtomicBool>,
        ) -> (Box<dyn Calls>, JoinHandle<()>) {
            let (client, mut connection) = Client::new($made(port, name, options), 100);
            let held = Arc::new(Mutex::new(Vec::new()));
            let kept = held.clone();
            let reconnects = options.reconnects;
            let thread = std::thread::spawn(move || {
                // What takes longer than this while it connects is begun anew, with a second CONNECT.
                let mut patience = PATIENCE;
                while !stop.load(Ordering::Relaxed) {
                    match connection.recv_timeout(patience) {
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => break,
                        Ok(Ok(event)) => {
                            patience = LOOK;
                            if let Some(seen) = $seen(event, &kept) {
                                say.send(seen).ok();
                            }
                        }
                        Ok(Err(_)) if reconnects => {
                            patience = PATIENCE;
                            std::thread::sleep(LOOK);
                        }
                        Ok(Err(error)) => {
                            say.send(Seen::Gone(error.to_string())).ok();
                            break;
                        }
                    }
                }
            });
            (Box::new(Made { client, held }), thread)
        }

        struct Made {
            client: Client,
            held: Arc<Mutex<Vec<Publish>>>,
        }

        fn quality(qos: u8) -> QoS {
            [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][qos as usize]
        }

        fn wrong(error: impl std::fmt::Display) -> String {
            error.to_string()
        }

        fn hold(kept: &Mutex<Vec<Publish>>, publish: Publish) -> usize {
            let mut kept = kept.lock().unwrap();
            kept.push(publish);
            kept.len() - 1
        }
    };
}

mod v3 {
    use super::*;
    use rumqttc::{
        Client, Event, LastWill, MqttOptions, Outgoing, Packet, Publish, QoS, RecvTimeoutError,
        SubscribeReasonCode,
    };
    use std::sync::mpsc::Sender;
    use std::sync::Mutex;

    start!(options_of, seen_in);

    fn options_of(port: u16, name: &str, options: &Options) -> MqttOptions {
        let mut made = MqttOptions::new(name, "127.0.0.1", port);
        made.set_clean_session(!options.lasting);
        made.set_manual_acks(options.manual);
        made.set_max_packet_size(PACKET_BYTES_MAX, PACKET_BYTES_MAX);
        if let Some(will) = &options.will {
            let (topic, body) = (will.topic.clone(), will.body.clone());
            made.set_last_will(LastWill::new(topic, body, quality(will.qos), will.retain));
        }
        made
    }

    fn seen_in(event: Event, kept: &Mutex<Vec<Publish>>) -> Option<Seen> {
        Some(match event {
            Event::Incoming(Packet::ConnAck(one)) => Seen::Connected(one.session_present),
            Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_)) => Seen::Acknowledged,
            Event::Outgoing(Outgoing::Publish(0)) => Seen::Acknowledged,
            Event::Incoming(Packet::UnsubAck(_)) => Seen::Answered(true),
            Event::Incoming(Packet::SubAck(one)) => {
                let refused = one.return_codes.contains(&SubscribeReasonCode::Failure);
                Seen::Answered(!refused)
            }
            Event::Incoming(Packet::Publish(one)) => Seen::Came(Message {
                topic: one.topic.clone(),
                body: one.payload.to_vec(),
                qos: one.qos as u8,
                retain: one.retain,
                number: hold(kept, one),
                ..Message::default()
            }),
            _ => return None,
        })
    }

    impl Calls for Made {
        fn publish(&self, message: &Message) -> Outcome {
            let (topic, body) = (message.topic.as_str(), message.body.clone());
            self.client.publish(topic, quality(message.qos), message.retain, body).map_err(wrong)
        }

        fn subscribe(&self, filter: &str, qos: u8, _: bool, _: bool) -> Outcome {
            self.client.subscribe(filter, quality(qos)).map_err(wrong)
        }

        fn unsubscribe(&self, filter: &str) -> Outcome {
            self.client.unsubscribe(filter).map_err(wrong)
        }

        fn acknowledge(&self, message: &Message) -> Outcome {
            self.client.ack(&self.held.lock().unwrap()[message.number]).map_err(wrong)
        }

        fn disconnect(&self) -> Outcome {
            self.client.disconnect().map_err(wrong)
        }
    }
}

mod v5 {
    use super::*;
    use rumqttc::v5::mqttbytes::v5::{
        Filter, LastWill, LastWillProperties, Packet, Publish, PublishProperties,
        SubscribeReasonCode,
    };
    use rumqttc::v5::mqttbytes::QoS;
    use rumqttc::v5::{Client, Event, MqttOptions, RecvTimeoutError};
    use rumqttc::Outgoing;
    use std::sync::mpsc::Sender;
    use std::sync::Mutex;

    start!(options_of, seen_in);

    fn options_of(port: u16, name: &str, options: &Options) -> MqttOptions {
        let mut made = MqttOptions::new(name, "127.0.0.1", port);
        made.set_clean_start(!options.lasting);
        made.set_manual_acks(options.manual);
        made.set_max_packet_size(Some(PACKET_BYTES_MAX as u32));
        if options.lasting {
            made.set_session_expiry_interval(Some(300));
        }
        made.set_receive_maximum(options.receive_max);
        made.set_topic_alias_max(options.alias_max);
        if let Some(will) = &options.will {
            let properties = LastWillProperties {
                delay_interval: None,
                payload_format_indicator: None,
                message_expiry_interval: None,
                content_type: None,
                response_topic: None,
                correlation_data: None,
                user_properties: will.user.clone(),
            };
            let (topic, body) = (will.topic.clone(), will.body.clone());
            let qos = quality(will.qos);
            made.set_last_will(LastWill::new(topic, body, qos, will.retain, Some(properties)));
        }
        made
    }

    fn seen_in(event: Event, kept: &Mutex<Vec<Publish>>) -> Option<Seen> {
        Some(match event {
            Event::Incoming(Packet::ConnAck(one)) => Seen::Connected(one.session_present),
            Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_)) => Seen::Acknowledged,
            Event::Outgoing(Outgoing::Publish(0)) => Seen::Acknowledged,
            Event::Incoming(Packet::UnsubAck(_)) => Seen::Answered(true),
            Event::Incoming(Packet::SubAck(one)) => Seen::Answered(
                one.return_codes.iter().all(|code| matches!(code, SubscribeReasonCode::Success(_))),
            ),
            Event::Incoming(Packet::Publish(one)) => {
                let found = one.properties.clone().unwrap_or_default();
                Seen::Came(Message {
                    topic: String::from_utf8_lossy(&one.topic).into_owned(),
                    body: one.payload.to_vec(),
                    qos: one.qos as u8,
                    retain: one.retain,
                    user: found.user_properties,
                    content_type: found.content_type,
                    response_topic: found.response_topic,
                    correlation: found.correlation_data.map(|data| data.to_vec()),
                    expiry_seconds: found.message_expiry_interval,
                    alias: found.topic_alias,
                    number: hold(kept, one),
                })
            }
            _ => return None,
        })
    }

    impl Calls for Made {
        fn publish(&self, message: &Message) -> Outcome {
            let properties = PublishProperties {
                payload_format_indicator: None,
                message_expiry_interval: message.expiry_seconds,
                topic_alias: message.alias,
                response_topic: message.response_topic.clone(),
                correlation_data: message.correlation.clone().map(Into::into),
                user_properties: message.user.clone(),
                subscription_identifiers: vec![],
                content_type: message.content_type.clone(),
            };
            let (topic, body) = (message.topic.as_str(), message.body.clone());
            let (qos, retain) = (quality(message.qos), message.retain);
            self.client.publish_with_properties(topic, qos, retain, body, properties).map_err(wrong)
        }

        fn subscribe(&self, filter: &str, qos: u8, no_local: bool, as_published: bool) -> Outcome {
            let mut wanted = Filter::new(filter, quality(qos));
            wanted.nolocal = no_local;
            wanted.preserve_retain = as_published;
            self.client.subscribe_many([wanted]).map_err(wrong)
        }

        fn unsubscribe(&self, filter: &str) -> Outcome {
            self.client.unsubscribe(filter).map_err(wrong)
        }

        fn acknowledge(&self, message: &Message) -> Outcome {
            self.client.ack(&self.held.lock().unwrap()[message.number]).map_err(wrong)
        }

        fn disconnect(&self) -> Outcome {
            self.client.disconnect().map_err(wrong)
        }
    }
}
