//! Undeclared traffic from the programs that the RT-MQTT paper uses: D-ITG, VLC and vsftpd.
//!
//! Each program runs in its host's network namespace, and in new process and mount namespaces with
//! an empty `/tmp`, so that no file and no child process outlives the emulation, however it ends.
//! Sources: the manual pages of D-ITG 2.8, VLC 3.0 and vsftpd 3.0.

use std::fmt;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use clap::ValueEnum;
use punctual_testbed::find_program;

use super::background::{Background, CHUNK, FILE, Kind};
use super::broker::{POLL, START_TIMEOUT, read};
use crate::process::Process;
use crate::sys;
use punctual_measure::{Error, Result};
use punctual_model::Rng;
use punctual_testbed::netns::{Namespace, memory_file};

/// The option that names tools, for error messages.
const OPTION: &str = "--tools";

/// TCP port on which a D-ITG receiver learns of a transfer in advance.
const SIGNALLING: u16 = 9000;

/// TCP port of FTP's control connection.
const CONTROL: u16 = 21;

/// Longest duration that D-ITG accepts, ms; the emulation ends the sender earlier.
const FOR_EVER: u32 = i32::MAX as u32;

/// Frame rate of VLC's video, 1/s.
const PICTURES: u64 = 25;

/// Highest rate of VLC's video, bit/s: encoding takes CPU time.
const MOST_VIDEO: u64 = 10_000_000;

/// User and group without privileges (nobody, nogroup): VLC refuses to run as root.
const NOBODY: u32 = 65534;

/// Bytes of a frame before the TCP payload, as Linux counts frames: headers of Ethernet, IPv4, and
/// TCP with time stamps.
const HEADERS: u64 = 14 + 20 + 32;

/// Configuration of vsftpd: anonymous users may read one directory.
const VSFTPD: &str = "listen=YES\nbackground=NO\nanonymous_enable=YES\nno_anon_password=YES\n\
                      local_enable=NO\nanon_root=/tmp/files\nsecure_chroot_dir=/tmp/empty\n\
                      seccomp_sandbox=NO\nxferlog_enable=NO\n";

/// Which tools generate undeclared traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wanted {
    /// D-ITG for `bulk`: `ITGSend` and `ITGRecv` (Debian: d-itg)
    DItg,
    /// VLC for `media`: `cvlc` (Debian: vlc-bin, vlc-plugin-base)
    Vlc,
    /// vsftpd for `files`: `vsftpd`, and `curl` to fetch them (Debian: vsftpd, curl)
    Vsftpd,
    /// Every one of these tools that is installed
    Installed,
    /// No tool: this program generates all traffic
    None,
}

/// A program that generates one kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    DItg,
    Vlc,
    Vsftpd,
}

impl Tool {
    const ALL: [Self; 3] = [Self::DItg, Self::Vlc, Self::Vsftpd];

    /// The kind of traffic that the tool generates.
    fn kind(self) -> Kind {
        match self {
            Self::DItg => Kind::Bulk,
            Self::Vlc => Kind::Media,
            Self::Vsftpd => Kind::Files,
        }
    }

    /// The tool's name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DItg => "d-itg",
            Self::Vlc => "vlc",
            Self::Vsftpd => "vsftpd",
        }
    }

    /// The executables that the tool needs, each with its Debian packages.
    fn programs(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::DItg => [("ITGSend", "d-itg"), ("ITGRecv", "d-itg")],
            Self::Vlc => [
                ("cvlc", "vlc-bin vlc-plugin-base"),
                ("setpriv", "util-linux"),
            ],
            Self::Vsftpd => [("vsftpd", "vsftpd"), ("curl", "curl")],
        }
    }

    /// The first executable of the tool that is not installed, with its Debian packages.
    fn missing(self) -> Option<(&'static str, &'static str)> {
        let all = self.programs().into_iter();
        all.chain([("unshare", "util-linux")])
            .find(|(program, _)| find_program(program).is_none())
    }

    /// For tests: returns true, and prints the reason, if the tool is not installed.
    ///
    /// # Panics
    /// If the tool is not installed and `PUNCTUAL_REQUIRE_TRAFFIC_TOOLS` is set.
    #[cfg(test)]
    fn is_missing(self) -> bool {
        let Some((program, _)) = self.missing() else {
            return false;
        };
        let why = format_args!("{program} is not installed");
        punctual_testbed::skip("PUNCTUAL_REQUIRE_TRAFFIC_TOOLS", why);
        true
    }
}

/// The tool's usual spelling.
impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DItg => "D-ITG",
            Self::Vlc => "VLC",
            Self::Vsftpd => "vsftpd",
        })
    }
}

/// Gives each generator the tool that was selected for its kind of traffic.
///
/// # Errors
/// If a named tool is not installed, has no traffic to generate, or cannot generate the rate.
pub(super) fn assign(wanted: &[Wanted], all: &mut [Background]) -> Result<()> {
    let refuse = |tool: Tool, remedy: String| {
        Err(Error::Config {
            field: OPTION,
            value: tool.name().to_owned(),
            remedy,
        })
    };
    for tool in Tool::ALL {
        let is_named = wanted.iter().any(|wanted| match wanted {
            Wanted::DItg => tool == Tool::DItg,
            Wanted::Vlc => tool == Tool::Vlc,
            Wanted::Vsftpd => tool == Tool::Vsftpd,
            Wanted::Installed | Wanted::None => false,
        });
        if !is_named && !wanted.contains(&Wanted::Installed) {
            continue;
        }
        match tool.missing() {
            Some((program, packages)) if is_named => {
                let remedy = format!(
                    "{program} is not found; install it (Debian: apt-get install {packages}), or \
                     leave {} out, then this program makes that traffic itself",
                    tool.name()
                );
                return refuse(tool, remedy);
            }
            Some(_) => continue,
            None => {}
        }
        let mut of_kind: Vec<_> = all
            .iter_mut()
            .filter(|background| background.kind == tool.kind())
            .collect();
        if of_kind.is_empty() && is_named {
            let kind = tool.kind();
            let remedy = format!("there is no {kind} traffic that it could make; add --background");
            return refuse(tool, remedy);
        }
        for background in &mut of_kind {
            if tool == Tool::Vlc && background.rate > MOST_VIDEO {
                let remedy = format!(
                    "it encodes what it sends, at most 10Mbit: divide {background} among several"
                );
                return refuse(tool, remedy);
            }
            background.tool = Some(tool);
        }
    }
    Ok(())
}

/// A running program of a tool. Dropping this value ends the program.
pub(super) struct Running {
    name: &'static str,
    process: Process,
    log: File,
}

impl Running {
    /// Starts a D-ITG receiver at `sink`, and waits until it listens.
    pub(super) fn itg_receive(sink: &Namespace, address: Ipv4Addr) -> Result<Self> {
        let script = "mount -t tmpfs tmpfs /tmp && ITGRecv -a \"$1\"";
        let mut running = Self::start(sink, "ITGRecv", script, &[address.to_string()], &[])?;
        running.wait_for_port(sink, SIGNALLING)?;
        Ok(running)
    }

    /// Starts a D-ITG sender of `rate` bit/s over TCP to a listening receiver.
    pub(super) fn itg_send(
        source: &Namespace,
        address: Ipv4Addr,
        port: u16,
        rate: u64,
    ) -> Result<Self> {
        // D-ITG's timer is coarse: with one write per frame it would stay far below the rate.
        let writes = rate as f64 / (CHUNK * 8) as f64;
        let script = "mount -t tmpfs tmpfs /tmp && \
                      ITGSend -a \"$1\" -rp \"$2\" -T TCP -C \"$3\" -c \"$4\" -t \"$5\"";
        let arguments = [
            address.to_string(),
            port.to_string(),
            format!("{writes:.3}"),
            CHUNK.to_string(),
            FOR_EVER.to_string(),
        ];
        Self::start(source, "ITGSend", script, &arguments, &[])
    }

    /// Starts VLC, which encodes a video of noise and sends it as an MPEG transport stream over
    /// UDP.
    pub(super) fn vlc(source: &Namespace, address: Ipv4Addr, port: u16, rate: u64) -> Result<Self> {
        let [width, height] = picture(rate);
        let script = "mount -t tmpfs tmpfs /tmp && cd / && \
                      while cat /proc/self/fd/0; do :; done | HOME=/tmp setpriv --reuid=\"$1\" \
                      --regid=\"$1\" --clear-groups cvlc --quiet --no-audio --demux rawvid \
                      --rawvid-fps \"$2\" --rawvid-width \"$3\" --rawvid-height \"$4\" \
                      --rawvid-chroma I420 fd://0 --sout \"$5\"";
        // VLC's encoder produces three quarters of the requested rate, with every codec.
        let told = (rate * 4 / 3).div_ceil(1000);
        let output = format!(
            "#transcode{{venc=avcodec{{rc-buffer-size={}}},vcodec=mp2v,vb={told}}}\
             :std{{access=udp,mux=ts,dst={address}:{port}}}",
            rate.max(8000) / 4,
        );
        let arguments = [
            NOBODY.to_string(),
            PICTURES.to_string(),
            width.to_string(),
            height.to_string(),
            output,
        ];
        let bytes = (width * height * 3 / 2 * PICTURES) as usize;
        Self::start(source, "cvlc", script, &arguments, &noise(bytes))
    }

    /// Starts an FTP server with one file and waits until it listens. The server limits each
    /// transfer to `most` bit/s, if given.
    pub(super) fn vsftpd(source: &Namespace, most: Option<u64>) -> Result<Self> {
        let script = "mount -t tmpfs tmpfs /tmp && mkdir /tmp/files /tmp/empty && \
                      head -c \"$1\" /dev/zero >/tmp/files/file && cat >/tmp/vsftpd.conf && \
                      PATH=$PATH:/usr/sbin vsftpd /tmp/vsftpd.conf";
        let arguments = [FILE.to_string()];
        let most = most.map(|most| format!("anon_max_rate={}\n", most / 8));
        let settings = format!("{VSFTPD}{}", most.unwrap_or_default());
        let mut running = Self::start(source, "vsftpd", script, &arguments, settings.as_bytes())?;
        running.wait_for_port(source, CONTROL)?;
        Ok(running)
    }

    /// Starts a shell script as the first process of a new process namespace: the kernel ends all
    /// its children with it, and ends it with this process.
    fn start(
        host: &Namespace,
        name: &'static str,
        script: &str,
        arguments: &[String],
        input: &[u8],
    ) -> Result<Self> {
        let context = "cannot make a file in memory";
        let input = memory_file("input", input).map_err(Error::io(context))?;
        let log = memory_file("log", &[]).map_err(Error::io(context))?;
        let [out, err] = [log.try_clone(), log.try_clone()];
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            // The `exit` keeps the shell from replacing itself with the script's last program.
            .args(["--", "sh", "-c", &format!("{script}; exit $?"), "sh"])
            .args(arguments)
            .stdin(input)
            .stdout(out.map_err(Error::io(context))?)
            .stderr(err.map_err(Error::io(context))?);
        sys::prepare_child(&mut command, None, 0);
        host.place(&mut command);
        let process = Process::spawn(&mut command).map_err(|error| Error::Peer {
            peer: name.to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self { name, process, log })
    }

    /// Waits until a process in `host` listens on a port, without connecting: the program would
    /// count a connection as a client.
    fn wait_for_port(&mut self, host: &Namespace, port: u16) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            for table in ["tcp", "tcp6"].map(|name| format!("/proc/thread-self/net/{name}")) {
                let table = host
                    .enter(|| fs::read_to_string(&table))?
                    .map_err(Error::io(format!("cannot read {table}")))?;
                if listens(&table, port) {
                    return Ok(());
                }
            }
            self.check()?;
            if Instant::now() > deadline {
                return Err(self.failed(&format!("nothing listens on port {port}")));
            }
            thread::sleep(POLL);
        }
    }

    /// # Errors
    /// If the program has ended, with its output.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.process.ended() {
            Some(status) => Err(self.failed(&format!("it ended with {status}"))),
            None => Ok(()),
        }
    }

    fn failed(&mut self, what: &str) -> Error {
        Error::Peer {
            peer: self.name.to_owned(),
            why: format!("{what}: {}", read(&mut self.log)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // `unshare` ignores SIGTERM while it waits for its child.
        self.process.kill();
    }
}

/// Fetches the server's file over FTP in the calling thread's namespace, unless `is_to_end`.
/// Failures are visible as missing received bytes.
pub(super) fn fetch(server: Ipv4Addr, is_to_end: impl Fn() -> bool) {
    let mut command = Command::new("curl");
    command
        // Ignore the user's configuration file and proxies.
        .args(["-q", "--noproxy", "*", "--silent", "--output", "/dev/null"])
        .arg(format!("ftp://{server}/file"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    sys::prepare_child(&mut command, None, 0);
    let Ok(mut process) = Process::spawn(&mut command) else {
        return;
    };
    while process.ended().is_none() && !is_to_end() {
        thread::sleep(POLL);
    }
    process.kill();
}

/// Bytes of TCP payload that a host has received since its namespace was created.
pub(super) fn received(host: &Namespace) -> Result<u64> {
    let table = host
        .enter(|| fs::read_to_string("/proc/thread-self/net/dev"))?
        .map_err(Error::io("cannot read what devices have received"))?;
    Ok(payload(&table))
}

/// TCP payload computed from the counters of `/proc/net/dev`, bytes.
fn payload(table: &str) -> u64 {
    let devices = table.lines().filter_map(|line| line.split_once(':'));
    devices
        .filter(|(name, _)| name.trim() != "lo")
        .map(|(_, counts)| {
            let mut counts = counts
                .split_whitespace()
                .map(|count| count.parse::<u64>().unwrap_or(0));
            let [bytes, packets] = [counts.next(), counts.next()].map(Option::unwrap_or_default);
            bytes.saturating_sub(packets * HEADERS)
        })
        .sum()
}

/// Whether a table in the format of `/proc/net/tcp` has a listening socket on a port.
fn listens(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next();
        // 0A is TCP_LISTEN.
        local.is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("0A")
    })
}

/// Width and height of pictures whose noise encodes to about the rate, at four bits per pixel.
fn picture(rate: u64) -> [u64; 2] {
    let points = rate / PICTURES / 4;
    let height = (points * 3 / 4).isqrt().next_multiple_of(16).max(32);
    [(height * 4 / 3).next_multiple_of(16), height]
}

/// Random bytes, which no encoder can compress.
fn noise(bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(1);
    (0..bytes).map(|_| rng.any() as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_read_from_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                     0: 00000000:0015 00000000:0000 0A 00000000:00000000\n   \
                     1: 0100000A:2328 0200000A:8000 01 00000000:00000000\n";
        assert!(listens(table, 21));
        let six =
            " 0: 00000000000000000000000000000000:2328 00000000000000000000000000000000:0000 0A";
        assert!(listens(six, SIGNALLING));
        // The table has an established connection and no listening socket.
        assert!(!listens(table, SIGNALLING));
        assert!(!listens(table, 2121));
    }

    #[test]
    fn what_came_is_counted_without_headers() {
        let table = "Inter-|   Receive                  |  Transmit\n \
                     face |bytes    packets errs drop|bytes    packets\n    \
                     lo: 99999 9 0 0 99999 9\n  eth0: 1580 2 0 0 132 2\n";
        assert_eq!(payload(table), 1448);
    }

    #[test]
    fn pictures_grow_with_the_rate_and_can_be_encoded() {
        assert_eq!(picture(1), [48, 32]);
        assert_eq!(picture(1_200_000), [128, 96]);
        let [width, height] = picture(MOST_VIDEO);
        assert!(width * height >= 100_000 && width % 16 == 0 && height % 16 == 0);
    }

    #[test]
    fn a_tool_without_work_is_refused_and_what_is_installed_takes_what_there_is() {
        let mut none: Vec<Background> = vec!["mqtt:a>b:1Mbit".parse().unwrap()];
        assert!(assign(&[Wanted::Installed], &mut none).is_ok());
        assert_eq!(none[0].tool, None);
        if Tool::DItg.is_missing() || Tool::Vlc.is_missing() {
            return;
        }
        let refused = |wanted, all: &str| {
            let error = assign(&[wanted], &mut [all.parse().unwrap()]).unwrap_err();
            error.to_string()
        };
        let error = refused(Wanted::DItg, "media:a>b:1Mbit");
        assert!(error.contains("no bulk traffic"), "{error}");
        let error = refused(Wanted::Vlc, "media:a>b:11Mbit");
        assert!(error.contains("divide media:a>b:11Mbit"), "{error}");
    }
}
