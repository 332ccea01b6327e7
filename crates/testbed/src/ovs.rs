//! One instance: its two programs, its bridges and ports.
//!
//! Sources: ovsdb-server(1), ovs-vswitchd(8), ovs-vsctl(8), and for dummy datapaths Open
//! vSwitch's lib/netdev-dummy.c.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Seconds until a program that does not answer counts as broken.
const PATIENCE: &str = "--timeout=30";

/// Waits for the end of its input and removes a directory; more than once, because programs that
/// are killed at the same time may still write into it.
const TIDY: &str = "read -r _; for _ in 1 2 3; do rm -rf -- \"$1\" && break; sleep 1; done";

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datapath {
    /// Packets come and go by commands only ([`Ovs::inject`]); takes no privileges.
    Dummy,
    /// Devices of the daemon's network namespace, in the daemon; takes root.
    Userspace,
}

/// Prepares a program to be started, such as by moving it into a network namespace.
pub type Placement<'a> = &'a dyn Fn(&mut Command);

/// A running instance.
#[derive(Debug)]
pub struct Ovs {
    // In this order they end.
    daemon: Program,
    _database: Program,
    directory: TempDir,
    _janitor: Janitor,
    datapath: Datapath,
}

impl Ovs {
    /// For tests: true, with the reason printed, where Open vSwitch is not installed.
    ///
    /// # Panics
    /// If it is not and `PUNCTUAL_REQUIRE_OVS` is set.
    pub fn is_missing() -> bool {
        let found = Command::new("ovs-vswitchd")
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let Err(error) = found else {
            return false;
        };
        let why = format_args!("ovs-vswitchd cannot be run: {error}");
        crate::skip("PUNCTUAL_REQUIRE_OVS", why);
        true
    }

    /// Starts an instance where the calling thread is.
    ///
    /// # Errors
    /// If a program is missing or fails.
    pub fn start(datapath: Datapath) -> io::Result<Self> {
        Self::start_in(datapath, &|_| {})
    }

    /// Starts an instance whose programs `place` prepares.
    ///
    /// # Errors
    /// If a program is missing or fails.
    pub fn start_in(datapath: Datapath, place: Placement<'_>) -> io::Result<Self> {
        // Paths of sockets are short: 107 bytes at most.
        let directory = tempfile::Builder::new().prefix("ovs").tempdir()?;
        let janitor = Janitor::start(directory.path())?;
        let at = |name: &str| directory.path().join(name);
        let file = at("conf.db");
        run(Command::new("ovsdb-tool")
            .arg("create")
            .arg(&file)
            .arg(SCHEMA))?;
        let database = Program::start(
            Command::new("ovsdb-server")
                .arg(&file)
                .arg(format!("--remote=punix:{}", at("db").display()))
                .arg(format!("--unixctl={}", at("database").display())),
            &directory,
            place,
        )?;
        // Waits until the server answers.
        let server = format!("--db=unix:{}", at("db").display());
        run(Command::new("ovs-vsctl").args([PATIENCE, "--retry", &server, "--no-wait", "init"]))?;
        let mut daemon = Command::new("ovs-vswitchd");
        daemon
            .arg(format!("unix:{}", at("db").display()))
            .arg(format!("--unixctl={}", at("daemon").display()));
        if datapath == Datapath::Dummy {
            daemon.args(["--enable-dummy=override", "--disable-system"]);
        }
        let daemon = Program::start(&mut daemon, &directory, place)?;
        let ovs = Self {
            daemon,
            _database: database,
            directory,
            _janitor: janitor,
            datapath,
        };
        // Waits until the daemon has read the database.
        ovs.vsctl(["set", "Open_vSwitch", ".", "external-ids:punctual=yes"])?;
        Ok(ovs)
    }

    /// The number of the switch daemon's process.
    pub fn pid(&self) -> u32 {
        self.daemon.0.id()
    }

    /// Where a controller reaches the bridge: a stream socket that takes OpenFlow.
    pub fn management(&self, bridge: &str) -> PathBuf {
        self.path(&format!("{bridge}.mgmt"))
    }

    /// Where the database listens: a stream socket that takes OVSDB.
    pub fn database(&self) -> PathBuf {
        self.path("db")
    }

    /// Makes a bridge that forwards nothing by itself, speaks OpenFlow 1.3 and has this number.
    ///
    /// # Errors
    /// As [`Self::vsctl`].
    pub fn bridge(&self, name: &str, datapath_id: u64) -> io::Result<()> {
        let kind = match self.datapath {
            Datapath::Dummy => "dummy",
            Datapath::Userspace => "netdev",
        };
        self.vsctl([
            "add-br",
            name,
            "--",
            "set",
            "bridge",
            name,
            &format!("datapath_type={kind}"),
            "protocols=OpenFlow13",
            "fail_mode=secure",
            &format!("other-config:datapath-id={datapath_id:016x}"),
        ])
        .map(drop)
    }

    /// Makes a device a port of a bridge. A dummy is made with it and writes what it sends into
    /// the file [`Self::sent`] names.
    ///
    /// # Errors
    /// As [`Self::vsctl`].
    pub fn port(&self, bridge: &str, device: &str, number: u32) -> io::Result<()> {
        let request = format!("ofport_request={number}");
        let sent = format!("options:tx_pcap={}", self.sent(device).display());
        let mut arguments = vec!["add-port", bridge, device, "--", "set", "interface", device];
        arguments.push(&request);
        if self.datapath == Datapath::Dummy {
            arguments.extend(["type=dummy", &sent]);
        }
        self.vsctl(arguments).map(drop)
    }

    /// The file (pcap) into which a dummy port writes the frames it sends.
    pub fn sent(&self, device: &str) -> PathBuf {
        self.path(&format!("{device}.pcap"))
    }

    /// Lets a dummy port receive a frame.
    ///
    /// # Errors
    /// As [`Self::appctl`].
    pub fn inject(&self, device: &str, frame: &[u8]) -> io::Result<()> {
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        self.appctl(["netdev-dummy/receive", device, &hex])
            .map(drop)
    }

    /// Runs ovs-vsctl and waits until the daemon has done what it says.
    ///
    /// # Errors
    /// If it cannot be run or fails; then what it printed.
    pub fn vsctl<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> io::Result<String> {
        let server = format!("--db=unix:{}", self.database().display());
        run(Command::new("ovs-vsctl")
            .args([PATIENCE, &server])
            .args(arguments))
    }

    /// Runs `ovs-ofctl --protocols=OpenFlow13 command` on a bridge.
    ///
    /// # Errors
    /// As [`Self::vsctl`].
    pub fn ofctl<S: AsRef<OsStr>>(
        &self,
        command: &str,
        bridge: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> io::Result<String> {
        let socket = format!("unix:{}", self.management(bridge).display());
        run(Command::new("ovs-ofctl")
            .args([PATIENCE, "--protocols=OpenFlow13", command, &socket])
            .args(arguments))
    }

    /// Runs ovs-appctl on the switch daemon.
    ///
    /// # Errors
    /// As [`Self::vsctl`].
    pub fn appctl<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> io::Result<String> {
        run(Command::new("ovs-appctl")
            .args([PATIENCE, "-t"])
            .arg(self.path("daemon"))
            .args(arguments))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// A program that ends with its value.
#[derive(Debug)]
struct Program(Child);

impl Program {
    fn start(command: &mut Command, directory: &TempDir, place: Placement<'_>) -> io::Result<Self> {
        // Nothing of the system's instance is to be found by default.
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, directory.path());
        }
        command
            .args(["-vconsole:off", "-vsyslog:off"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        place(command);
        // SAFETY: between fork and exec there is one system call; nothing allocates or locks.
        unsafe {
            command.pre_exec(
                || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                },
            );
        }
        command
            .spawn()
            .map(Self)
            .map_err(|error| named(command, &error))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody to tell if it cannot be ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Removes a directory when this process has ended, even if it was killed: a shell that waits for
/// the end of a pipe of which only this process has the other end.
#[derive(Debug)]
struct Janitor(Child);

impl Janitor {
    fn start(directory: &Path) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", TIDY, "sh"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What the keyboard sends to this process is not for it.
            .process_group(0);
        command
            .spawn()
            .map(Self)
            .map_err(|error| named(&command, &error))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        // Its input ends, and so does it: the directory has been removed before.
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}

fn run(command: &mut Command) -> io::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| named(command, &error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(named(command, &io::Error::other(said)))
}

fn named(command: &Command, error: &io::Error) -> io::Error {
    let program = Path::new(command.get_program()).display();
    let first = command.get_args().last().unwrap_or_default().display();
    io::Error::new(error.kind(), format!("{program} … {first}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_run_beside_one_another_and_leave_nothing() {
        if Ovs::is_missing() {
            return;
        }
        let instances = [1, 2].map(|number| {
            let ovs = Ovs::start(Datapath::Dummy).unwrap();
            ovs.bridge("br0", number).unwrap();
            ovs.port("br0", "p1", 1).unwrap();
            ovs
        });
        for (number, ovs) in (1..).zip(&instances) {
            let shown = ovs.ofctl("show", "br0", [""; 0]).unwrap();
            assert!(shown.contains(&format!("dpid:{number:016x}")), "{shown}");
            assert!(shown.contains(" 1(p1)"), "{shown}");
        }
        let error = instances[0].vsctl(["list-ports", "br9"]).unwrap_err();
        assert!(error.to_string().contains("no bridge named br9"), "{error}");
        for ovs in instances {
            let (pid, directory) = (ovs.pid(), ovs.database());
            drop(ovs);
            assert!(!directory.exists());
            assert!(!Path::new(&format!("/proc/{pid}")).exists());
        }
    }

    #[test]
    fn packets_go_through() {
        if Ovs::is_missing() {
            return;
        }
        let ovs = Ovs::start(Datapath::Dummy).unwrap();
        ovs.bridge("br0", 1).unwrap();
        ovs.port("br0", "p1", 1).unwrap();
        ovs.port("br0", "p2", 2).unwrap();
        ovs.ofctl("add-flow", "br0", ["in_port=1,actions=output:2"])
            .unwrap();
        ovs.inject("p1", &[2; 64]).unwrap();
        let flows = ovs.ofctl("dump-flows", "br0", [""; 0]).unwrap();
        assert!(flows.contains("n_packets=1, n_bytes=64"), "{flows}");
        let sent = std::fs::read(ovs.sent("p2")).unwrap();
        assert!(sent.ends_with(&[2; 64]));
    }
}
