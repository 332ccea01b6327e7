//! `punctual store`: looks into the directory in which a broker keeps what must
//! survive it.
//!
//! `check`, `stats` and `export` only read, and work while a broker writes: they
//! see what was safe at one moment. `import` and `compact` need the directory
//! for themselves.

mod lines;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};
use clap::{Args, Subcommand};
use punctual_broker::version_at;
use punctual_manager::State;
use punctual_model::latest_instant;
use punctual_server::admission::{FLOWS, FlowFile};
use punctual_server::store::import::{self, UNFINISHED};
use punctual_store::{Batch, Files, Log, LogConfig, Medium as _, Store as _};

use self::lines::Line;
use super::{Failure, print};

/// Operations of a commit of `import`.
const GROUP: usize = 10_000;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Read everything and say what is damaged. Fails if something is.
    Check(Place),
    /// Say how much there is.
    Stats(Place),
    /// Write everything as lines of JSON to standard output: a backup, also of a
    /// store in use. Admitted flows are part of it if they are beside it (flows.json).
    Export {
        #[command(flatten)]
        place: Place,
        /// Take retained messages whose version is more than a day in the future, as another broker of
        /// a mesh said it, for the oldest of their topics: any other that is published takes their place.
        #[arg(long)]
        lower_versions: bool,
    },
    /// Fill a new store from lines of JSON.
    Import {
        #[command(flatten)]
        place: Place,
        /// The lines; - for standard input.
        file: PathBuf,
    },
    /// Give back all the room that can be given back.
    Compact(Place),
}

/// Which store.
#[derive(Debug, Args)]
pub(super) struct Place {
    /// The directory, as the broker was given it.
    directory: PathBuf,
}

pub(super) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Check(Place { directory }) => check(&directory),
        Command::Stats(Place { directory }) => print(&describe(&read(&directory)?)),
        Command::Export {
            place,
            lower_versions,
        } => export(&place.directory, lower_versions),
        Command::Import { place, file } => import(&place.directory, &file),
        Command::Compact(Place { directory }) => compact(&directory),
    }
}

/// Opens a store to read it.
fn read(directory: &Path) -> Result<Log<Files>, Failure> {
    if import::is_unfinished(directory) {
        own(directory)?;
    }
    let mut files = Files::read_only(directory)?;
    if files.list()?.is_empty() {
        return Err(nothing(directory));
    }
    open(files)
}

/// The files of a store, for nobody else; with what an import that was stopped has left.
fn own(directory: &Path) -> Result<Files, Failure> {
    let files = Files::open(directory)?;
    import::finish(directory)?;
    Ok(files)
}

/// Opens a store to write to it.
fn open(files: Files) -> Result<Log<Files>, Failure> {
    // How much a store may keep is for the broker to say.
    let config = LogConfig {
        max_bytes: u64::MAX,
        ..LogConfig::default()
    };
    Ok(Log::open(
        files,
        config,
        punctual_server::store::log_start(),
    )?)
}

fn nothing(directory: &Path) -> Failure {
    format!("{} has no store", directory.display()).into()
}

fn check(directory: &Path) -> Result<(), Failure> {
    let mut log = read(directory)?;
    let report = log.recover(&mut |_| {})?;
    let mut text = format!(
        "format {}: {} commits in {} bytes: {} sessions, {} queued messages, {} retained messages, {} flows\n",
        log.format(),
        report.commits,
        report.bytes,
        report.sessions,
        report.entries,
        report.retained,
        report.flows,
    );
    let before = report.torn - report.tail.map_or(0, |tail| tail.len);
    if before > 0 {
        text += &format!(
            "{before} bytes of commits that were not complete are left out; they were not confirmed\n",
        );
    }
    if let Some(tail) = report.tail {
        text += &format!("{tail}\n");
    }
    if report.unfinished > 0 {
        text += &format!(
            "{} things without what belongs to them are left out; they were not confirmed\n",
            report.unfinished
        );
    }
    for damage in &report.damages {
        text += &format!("{damage}\n");
    }
    print(&text)?;
    match report.damages.len() as u64 + report.more_damages {
        0 => Ok(()),
        count => {
            Err(format!("{count} places are damaged; the broker goes on with the rest").into())
        }
    }
}

fn describe(log: &Log<Files>) -> String {
    let (stats, report) = (log.stats(), log.report());
    let mut text = format!("format {}\n", log.format());
    if let (Some(identity), Some(created)) = (log.identity(), log.created()) {
        let created = DateTime::from_timestamp_nanos(created as i64);
        let created = created.to_rfc3339_opts(SecondsFormat::Secs, true);
        text += &format!("identity {identity:016x}\ncreated {created}\n");
    }
    let lines = [
        ("sessions", stats.sessions),
        ("queued_messages", stats.entries),
        ("contents", stats.messages),
        ("retained_messages", stats.retained),
        ("flows", stats.flows),
        ("needed_bytes", stats.live_bytes),
        ("disk_bytes", stats.disk_bytes),
        ("damages", report.damages.len() as u64 + report.more_damages),
    ];
    for (name, value) in lines {
        text += &format!("{name} {value}\n");
    }
    text
}

fn export(directory: &Path, lower_versions: bool) -> Result<(), Failure> {
    let latest = lower_versions.then(latest_version).transpose()?;
    let mut log = read(directory)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut failed, mut lines) = (None, 0);
    let report = log.recover(&mut |op| {
        if failed.is_none()
            && let Some(mut line) = Line::of(&op)
        {
            if let Some(latest) = latest {
                line.lower_version(latest);
            }
            failed = put_line(&mut out, &line).err();
        }
        lines += 1;
    })?;
    // They are beside the log, and go with it.
    let kept = FlowFile::new(directory.join(FLOWS)).read();
    if let Ok(Some(state)) = &kept {
        let flows = serde_json::from_str(&state.to_json())?;
        if failed.is_none() {
            failed = put_line(&mut out, &Line::Admitted { flows }).err();
        }
        lines += 1;
    }
    let end = Line::End { lines };
    if failed.is_none() {
        failed = put_line(&mut out, &end).err();
    }
    if let Some(error) = failed.or(out.flush().err()) {
        return match error.kind() {
            io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(format!("standard output cannot be written: {error}").into()),
        };
    }
    kept?;
    match report.damages.len() as u64 + report.more_damages {
        0 => Ok(()),
        count => Err(format!(
            "{count} places are damaged and left out; punctual store check names them"
        )
        .into()),
    }
}

/// The highest version of a retained message that can be true.
fn latest_version() -> Result<u64, Failure> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|_| "the clock of this machine is before 1970: set it first")?;
    let clock = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    Ok(version_at(latest_instant(clock)))
}

fn put_line(out: &mut impl Write, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

fn import(directory: &Path, file: &Path) -> Result<(), Failure> {
    let lines: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let opened = File::open(file);
        let opened = opened.map_err(|error| format!("{}: {error}", file.display()))?;
        Box::new(BufReader::new(opened))
    };
    let was_stopped = import::is_unfinished(directory);
    let mut files = own(directory)?;
    if !files.list()?.is_empty() {
        let which = match was_stopped {
            true => "the store of an import that was stopped, which is complete now",
            false => "a store already",
        };
        return Err(format!("{} has {which}; name a new directory", directory.display()).into());
    }
    // What is made there is no store before all of it is: also if this ends now.
    let unfinished = directory.join(UNFINISHED);
    clear(&unfinished)?;
    let filled = fill(&unfinished, file, lines).and_then(|text| {
        leave_flows(&unfinished, directory)?;
        import::publish(directory)?;
        Ok(text)
    });
    let cleared = clear(&unfinished);
    let text = filled?;
    cleared?;
    print(&text)
}

/// Flows that are there already are those of the backup, of an import that was stopped, or
/// somebody needs them.
fn leave_flows(from: &Path, to: &Path) -> Result<(), String> {
    let [new, old] = [from, to].map(|place| fs::read(place.join(FLOWS)).ok());
    if old.is_none() || new == old {
        return Ok(());
    }
    let path = to.join(FLOWS);
    Err(format!(
        "{} has other flows than the backup; move it away, or name a new directory",
        path.display()
    ))
}

fn clear(place: &Path) -> Result<(), String> {
    match fs::remove_dir_all(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{} cannot be removed: {error}", place.display()))
        }
        _ => Ok(()),
    }
}

/// Makes a store of lines; says how much it is.
fn fill(directory: &Path, file: &Path, lines: Box<dyn BufRead>) -> Result<String, Failure> {
    let mut log = open(Files::open(directory)?)?;
    // A content stays only with what refers to it, so contents come last.
    let (mut group, mut contents) = (Batch::new(), vec![Batch::new()]);
    let (mut count, mut end) = (0, None);
    for line in lines.lines() {
        let at = format!("{}, line {}", file.display(), count + 1);
        if end.is_some() {
            return Err(format!("{at}: nothing may follow the line with the end").into());
        }
        let line = line.map_err(|error| format!("{at}: {error}"))?;
        let line: Line = serde_json::from_str(&line).map_err(|error| format!("{at}: {error}"))?;
        line.check().map_err(|wrong| format!("{at}: {wrong}"))?;
        if let Line::End { lines } = line {
            end = Some(lines);
            continue;
        }
        count += 1;
        if let Line::Admitted { flows } = &line {
            FlowFile::new(directory.join(FLOWS)).write(&State::from_json(&flows.to_string())?)?;
        }
        if let Line::Message { .. } = line {
            if contents.last().is_none_or(|batch| batch.len() >= GROUP) {
                contents.push(Batch::new());
            }
            if let Some(batch) = contents.last_mut() {
                line.put(batch);
            }
            continue;
        }
        line.put(&mut group);
        if group.len() >= GROUP {
            log.commit(&group)?;
            group.clear();
        }
    }
    if end != Some(count) {
        return Err(format!(
            "{} has {count} lines, and the last does not say that these are all: something \
             was cut off; if not, append {{\"kind\":\"end\",\"lines\":{count}}}",
            file.display()
        )
        .into());
    }
    log.commit(&group)?;
    for batch in &contents {
        log.commit(batch)?;
    }
    Ok(describe(&log))
}

fn compact(directory: &Path) -> Result<(), Failure> {
    if !import::is_unfinished(directory) && Files::read_only(directory)?.list()?.is_empty() {
        return Err(nothing(directory));
    }
    let mut log = open(own(directory)?)?;
    let (damages, more) = (log.report().damages.clone(), log.report().more_damages);
    let before = log.stats().disk_bytes;
    log.compact()?;
    let after = log.stats().disk_bytes;
    let room = format!("{before} bytes before, {after} bytes now");
    match damages.len() as u64 + more {
        0 => print(&format!("{room}\n")),
        count => {
            let named: Vec<String> = damages.iter().map(ToString::to_string).collect();
            let named = named.join("\n  ");
            Err(
                format!("{count} places were damaged and are left out now:\n  {named}\n{room}")
                    .into(),
            )
        }
    }
}
