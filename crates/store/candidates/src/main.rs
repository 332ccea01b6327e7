//! The write pattern of a broker with persistent sessions on embedded databases
//! and on the log of `punctual-store`: groups of messages, each with an entry,
//! that are done with a few groups later; every group is synced.
//!
//! `cargo run --release -- DIRECTORY` prints a table in Markdown. `cargo run
//! --release -- DIRECTORY restart` fills a log with a million messages and
//! measures how long reading it takes.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fjall::{KeyspaceCreateOptions, PersistMode};
use punctual_store::op::{Content, EntryOp, Ids, SessionOp};
use punctual_store::{Batch, Files, Log, LogConfig, Op, Start, Store};
use redb::{ReadableDatabase as _, TableDefinition};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PAYLOAD: [u8; 200] = [7; 200];
const SESSIONS: u64 = 1000;
/// Groups after which a message is done with.
const LAG: u64 = 5;
/// Each measurement takes so long.
const DURATION: Duration = Duration::from_secs(4);

/// A group: messages that come, and messages that are done with.
struct Group {
    comes: std::ops::Range<u64>,
    done: std::ops::Range<u64>,
}

trait Candidate {
    fn commit(&mut self, group: &Group) -> Result<()>;
    /// Messages that are kept, to see that it did what it was asked.
    fn kept(&mut self) -> Result<u64>;
}

fn session(message: u64) -> u64 {
    message % SESSIONS + 1
}

fn content() -> Content<'static> {
    Content {
        topic: "plant/line/4/sensor/17",
        properties: &[],
        payload: &PAYLOAD,
        publisher: 1,
        qos: 1,
        retain: false,
        expires: None,
        stamp: &[],
    }
}

fn entry(message: u64) -> EntryOp<'static> {
    EntryOp {
        session: session(message),
        entry: message,
        message,
        qos: 1,
        retain: false,
        subscription_ids: Ids::NONE,
        number: None,
    }
}

struct OwnLog(Log<Files>);

impl Candidate for OwnLog {
    fn commit(&mut self, group: &Group) -> Result<()> {
        let mut batch = Batch::new();
        for message in group.comes.clone() {
            batch.push(&Op::Message {
                message,
                content: content(),
            });
            batch.push(&Op::Entry(entry(message)));
        }
        for entry in group.done.clone() {
            batch.push(&Op::Done {
                session: session(entry),
                entry,
            });
        }
        Ok(self.0.commit(&batch)?)
    }

    fn kept(&mut self) -> Result<u64> {
        Ok(self.0.stats().messages)
    }
}

/// What a database stores: the same bytes, without the headers of records.
fn records(message: u64) -> (Vec<u8>, Vec<u8>) {
    let (mut content_bytes, mut entry_bytes) = (Vec::new(), Vec::new());
    let op = Op::Message {
        message,
        content: content(),
    };
    op.encode(&mut content_bytes);
    Op::Entry(entry(message)).encode(&mut entry_bytes);
    (content_bytes, entry_bytes)
}

const MESSAGES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("messages");
const ENTRIES: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("entries");

struct Redb(redb::Database);

impl Candidate for Redb {
    fn commit(&mut self, group: &Group) -> Result<()> {
        let transaction = self.0.begin_write()?;
        {
            let mut messages = transaction.open_table(MESSAGES)?;
            let mut entries = transaction.open_table(ENTRIES)?;
            for message in group.comes.clone() {
                let (content, entry) = records(message);
                messages.insert(message, &content[..])?;
                entries.insert((session(message), message), &entry[..])?;
            }
            for message in group.done.clone() {
                messages.remove(message)?;
                entries.remove((session(message), message))?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn kept(&mut self) -> Result<u64> {
        use redb::ReadableTableMetadata as _;
        Ok(self.0.begin_read()?.open_table(MESSAGES)?.len()?)
    }
}

struct Fjall {
    database: fjall::Database,
    messages: fjall::Keyspace,
    entries: fjall::Keyspace,
}

fn entry_key(message: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&session(message).to_be_bytes());
    key[8..].copy_from_slice(&message.to_be_bytes());
    key
}

impl Candidate for Fjall {
    fn commit(&mut self, group: &Group) -> Result<()> {
        let mut batch = self.database.batch();
        for message in group.comes.clone() {
            let (content, entry) = records(message);
            batch.insert(&self.messages, message.to_be_bytes(), content);
            batch.insert(&self.entries, entry_key(message), entry);
        }
        for message in group.done.clone() {
            batch.remove(&self.messages, message.to_be_bytes());
            batch.remove(&self.entries, entry_key(message));
        }
        batch.commit()?;
        Ok(self.database.persist(PersistMode::SyncData)?)
    }

    fn kept(&mut self) -> Result<u64> {
        Ok(self.messages.iter().count() as u64)
    }
}

fn open(name: &str, place: &Path) -> Result<Box<dyn Candidate>> {
    Ok(match name {
        "log" => Box::new(OwnLog(Log::open(
            Files::open(place)?,
            LogConfig::default(),
            1,
        )?)),
        "redb" => {
            fs::create_dir_all(place)?;
            Box::new(Redb(redb::Database::create(place.join("redb"))?))
        }
        _ => {
            let database = fjall::Database::builder(place).open()?;
            let messages = database.keyspace("messages", KeyspaceCreateOptions::default)?;
            let entries = database.keyspace("entries", KeyspaceCreateOptions::default)?;
            Box::new(Fjall {
                database,
                messages,
                entries,
            })
        }
    })
}

/// Bytes that this process has had written to disks.
fn written() -> Result<u64> {
    let io = fs::read_to_string("/proc/self/io")?;
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.ok_or("no write_bytes")?.parse()?)
}

fn size(place: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for file in fs::read_dir(place)? {
        let file = file?;
        bytes += match file.file_type()?.is_dir() {
            true => size(&file.path())?,
            false => file.metadata()?.blocks() * 512,
        };
    }
    Ok(bytes)
}

fn measure(name: &str, messages: u64, place: &Path) -> Result<()> {
    let place = place.join(format!("{name}-{messages}"));
    let mut candidate = open(name, &place)?;
    let (content, entry) = records(1 << 20);
    let useful = (content.len() + entry.len()) as u64;
    let before = written()?;
    let begun = Instant::now();
    let mut times = Vec::new();
    let mut groups = 0;
    while begun.elapsed() < DURATION {
        let first = 1 + groups * messages;
        let group = Group {
            comes: first..first + messages,
            done: match groups.checked_sub(LAG) {
                Some(old) => 1 + old * messages..1 + (old + 1) * messages,
                None => 0..0,
            },
        };
        let commit = Instant::now();
        candidate.commit(&group)?;
        times.push(commit.elapsed());
        groups += 1;
    }
    let took = begun.elapsed();
    let kept = candidate.kept()?;
    assert_eq!(
        kept,
        groups.min(LAG) * messages,
        "{name} keeps what it should"
    );
    drop(candidate);
    let amplification = (written()? - before) as f64 / (groups * messages * useful) as f64;
    times.sort_unstable();
    let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e3;
    println!(
        "| {name} | {messages} | {:.0} | {:.2} | {:.2} | {amplification:.2} | {:.1} |",
        (groups * messages) as f64 / took.as_secs_f64(),
        at(0.5),
        at(0.99),
        size(&place)? as f64 / f64::from(1 << 20),
    );
    fs::remove_dir_all(&place)?;
    Ok(())
}

/// A million messages in ten thousand sessions.
fn restart(place: &Path) -> Result<()> {
    let place = place.join("restart");
    let mut log = Log::open(Files::open(&place)?, LogConfig::default(), Start { seed: 1, wall: 0 })?;
    let mut batch = Batch::new();
    for session in 1..=10_000 {
        let client_id = format!("client-{session}");
        batch.push(&Op::Session(SessionOp {
            session,
            client_id: &client_id,
            user: None,
            version: 5,
            expiry: u32::MAX,
            detached: Some(1),
            next_packet_id: 1,
        }));
    }
    for message in 1..=1_000_000 {
        batch.push(&Op::Message {
            message,
            content: content(),
        });
        batch.push(&Op::Entry(EntryOp {
            session: message % 10_000 + 1,
            ..entry(message)
        }));
        if message.is_multiple_of(1000) {
            log.commit(&batch)?;
            batch.clear();
        }
    }
    let stats = log.stats();
    drop(log);
    let begun = Instant::now();
    let mut log = Log::open(Files::open(&place)?, LogConfig::default(), Start { seed: 2, wall: 0 })?;
    let opened = begun.elapsed();
    let (mut told, mut entries) = (0u64, 0u64);
    let report = log.recover(&mut |op| {
        told += 1;
        entries += u64::from(matches!(op, Op::Entry(_)));
    })?;
    let recovered = begun.elapsed();
    assert_eq!((entries, report.damages.len()), (1_000_000, 0));
    println!(
        "{} messages, {} sessions, {:.0} MiB: opened in {:.2} s, told {told} operations after {:.2} s",
        report.messages,
        report.sessions,
        stats.disk_bytes as f64 / f64::from(1 << 20),
        opened.as_secs_f64(),
        recovered.as_secs_f64(),
    );
    drop(log);
    fs::remove_dir_all(&place)?;
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().ok_or("name a directory on the disk")?;
    let place = Path::new(&place);
    if arguments.next().is_some_and(|what| what == "restart") {
        return restart(place);
    }
    println!(
        "| store | messages in a group | messages/s | commit p50 ms | p99 ms | bytes written per byte | MiB after |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for messages in [1, 10, 100, 1000] {
        for name in ["log", "fjall", "redb"] {
            measure(name, messages, place)?;
        }
    }
    Ok(())
}
