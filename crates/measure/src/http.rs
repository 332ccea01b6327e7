//! The least HTTP client that can ask a broker: one request, one answer, closed; and how it shows
//! that it may ask.
//!
//! Sources: RFC 9112, RFC 6750. The request asks for the connection to be closed and speaks
//! HTTP/1.0, so that the answer is never chunked and ends with the connection. Who is refused with
//! 401 on the loopback is told where the tokens are; they are read from there if nobody else can
//! have put them there: the file belongs to the user whose program listens, and is that user's
//! alone. So a program that has taken the port of another user's broker gets no token of it. What
//! decides is the file that was opened, not what its path leads to at another time.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use punctual_auth::{HttpRole, TokenFile};

use crate::error::{Error, Result};

/// Longest wait for the connection, and for any part of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest answer that is read, bytes.
const LARGEST_ANSWER: u64 = 16 * 1024 * 1024;
/// Largest token file that is read, bytes.
const LARGEST_FILE: u64 = 256 * 1024;
/// In front of the path of a Unix socket.
const UNIX: &str = "unix:";
/// What the challenge calls the file of tokens.
const TOKEN_FILE: &str = "token_file=\"";

/// Where an HTTP interface is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpPlace {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for HttpPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for HttpPlace {
    /// What to write instead.
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let remedy = "give host and port, such as 127.0.0.1:8080, or unix:PATH";
        match text.strip_prefix(UNIX) {
            Some("") => Err(remedy),
            Some(path) => Ok(Self::Unix(path.into())),
            None => {
                let mut found = text.to_socket_addrs().map_err(|_| remedy)?;
                found.next().map(Self::Tcp).ok_or(remedy)
            }
        }
    }
}

/// What an interface answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 100 to 999.
    pub status: u16,
    /// All that follows the head.
    pub body: String,
    /// Where the tokens are, if it is said.
    token_file: Option<PathBuf>,
}

/// An HTTP interface that is asked.
#[derive(Debug)]
pub struct Api {
    place: HttpPlace,
    /// Where the tokens are, if the caller knows.
    token_file: Option<PathBuf>,
    /// What reading takes, once it was needed.
    token: OnceLock<String>,
}

impl Api {
    /// The interface there. With `token_file` tokens are read from that file, otherwise from where
    /// the interface says that they are, if it is on this machine.
    #[must_use]
    pub fn new(place: HttpPlace, token_file: Option<PathBuf>) -> Self {
        Self {
            place,
            token_file,
            token: OnceLock::new(),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> &HttpPlace {
        &self.place
    }

    /// Fetches the token at once, for what answers everybody and says more to those who show one.
    /// Without a token it is asked as everybody may.
    ///
    /// # Errors
    /// The given file has no token, or nobody answers.
    pub fn authenticate(&self) -> Result<()> {
        self.send("GET", "/api/v1/role", "").map(|_| ())
    }

    /// The body of the answer to a GET.
    ///
    /// # Errors
    /// Nobody answers, or with another status than 200.
    pub fn get(&self, path: &str) -> Result<String> {
        let answer = self.send("GET", path, "")?;
        match answer.status {
            200 => Ok(answer.body),
            status => {
                let said = format!("it answers {status} {}", answer.body.trim());
                Err(self.failed(path)(io::Error::other(
                    said.trim_end().to_owned(),
                )))
            }
        }
    }

    /// Sends a request, with a body of JSON if there is one, and with a token if it takes one.
    ///
    /// # Errors
    /// Nobody answers, no token is to be had, or the answer is not HTTP.
    pub fn send(&self, method: &str, path: &str, body: &str) -> Result<Answer> {
        let role = match method {
            "GET" => HttpRole::Read,
            _ => HttpRole::Administer,
        };
        let given = match (&self.token_file, self.token.get()) {
            (_, Some(token)) if role == HttpRole::Read => Some(token.clone()),
            (Some(file), _) => {
                let token = TokenSource::open(file).and_then(|source| source.token(role));
                Some(token.map_err(self.failed(path))?)
            }
            (None, _) => None,
        };
        let exchange = |token: Option<&str>| {
            let request = self.request(method, path, body, token);
            self.exchange(&request).map_err(self.failed(path))
        };
        let mut token = given;
        let mut answer = exchange(token.as_deref())?;
        if token.is_none()
            && let Some(file) = &answer.token_file
        {
            let told = self.told_token(file, role).map_err(self.failed(path))?;
            answer = exchange(Some(&told))?;
            token = Some(told);
        }
        if role == HttpRole::Read
            && let Some(token) = token
        {
            let _ = self.token.set(token);
        }
        Ok(answer)
    }

    fn failed(&self, path: &str) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::io(format!("{}{path}", self.place))
    }

    fn request(&self, method: &str, path: &str, body: &str, token: Option<&str>) -> String {
        let host = match &self.place {
            HttpPlace::Tcp(address) => address.to_string(),
            HttpPlace::Unix(_) => "localhost".to_owned(),
        };
        let mut request =
            format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n");
        if let Some(token) = token {
            request += &format!("Authorization: Bearer {token}\r\n");
        }
        if !body.is_empty() {
            let length = body.len();
            request += &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        }
        request + "\r\n" + body
    }

    fn exchange(&self, request: &str) -> io::Result<Answer> {
        let bytes = match &self.place {
            HttpPlace::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                talk(stream, request)?
            }
            HttpPlace::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                talk(stream, request)?
            }
        };
        let text = String::from_utf8_lossy(&bytes);
        let other = || io::Error::other("the answer is not HTTP");
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(other)?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Ok(Answer {
            status: status
                .filter(|_| head.starts_with("HTTP/"))
                .ok_or_else(other)?,
            body: body.to_owned(),
            token_file: told_file(head),
        })
    }

    /// The token of a file that the interface names, if it may be shown to who listens there.
    fn told_token(&self, file: &Path, role: HttpRole) -> io::Result<String> {
        let HttpPlace::Tcp(address) = &self.place else {
            return Err(io::Error::other(
                "the user that asks has no role at this Unix socket",
            ));
        };
        let source = TokenSource::open(file)?;
        let is_own = match listening_user(*address) {
            Some(user) => source.is_private_to(user)?,
            None => false,
        };
        if address.ip().is_loopback() && is_own {
            return source.token(role);
        }
        Err(io::Error::other(format!(
            "it takes a role, and {} is not of the user who listens there, or not readable by that \
             user alone; name a file of tokens with --token-file",
            file.display()
        )))
    }
}

/// Asks for `path` at `address` and returns the body of an answer with status 200.
///
/// # Errors
/// Nobody answers, or with another status.
pub fn http_get(address: SocketAddr, path: &str) -> Result<String> {
    Api::new(HttpPlace::Tcp(address), None).get(path)
}

fn talk(mut stream: impl Read + Write, request: &str) -> io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LARGEST_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}

/// The file of tokens in the challenge of a head with status 401.
fn told_file(head: &str) -> Option<PathBuf> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let (_, challenge) = lines.find(|(name, value)| {
        name.eq_ignore_ascii_case("WWW-Authenticate") && value.contains(TOKEN_FILE)
    })?;
    let (_, quoted) = challenge.split_once(TOKEN_FILE)?;
    let mut path = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => return Some(path.into()),
            '\\' => path.push(chars.next()?),
            c => path.push(c),
        }
    }
}

/// An opened file of tokens. Whoever can change its path has no influence on it any more.
struct TokenSource<'a> {
    file: File,
    path: &'a Path,
}

impl<'a> TokenSource<'a> {
    fn open(path: &'a Path) -> io::Result<Self> {
        // Not the terminal, and not something that never comes.
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path);
        let file = opened.map_err(|error| unreadable(path, &error))?;
        Ok(Self { file, path })
    }

    /// Whether it is a file of that user, and nobody else may read or write it.
    fn is_private_to(&self, user: u32) -> io::Result<bool> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|error| unreadable(self.path, &error))?;
        Ok(metadata.is_file() && metadata.uid() == user && metadata.mode() & 0o077 == 0)
    }

    /// The token that suffices for a role.
    fn token(self, role: HttpRole) -> io::Result<String> {
        let mut text = String::new();
        let read = self.file.take(LARGEST_FILE).read_to_string(&mut text);
        read.map_err(|error| unreadable(self.path, &error))?;
        let path = self.path.display();
        let tokens = TokenFile::parse(&text).map_err(|errors| {
            let first = errors.first().map(ToString::to_string).unwrap_or_default();
            io::Error::other(format!("{path}: {first}"))
        })?;
        let token = tokens.token_for(role).map(str::to_owned);
        token.ok_or_else(|| {
            io::Error::other(format!(
                "{path} has no token of the role {role} or a greater one"
            ))
        })
    }
}

fn unreadable(file: &Path, error: &io::Error) -> io::Error {
    let file = file.display();
    io::Error::new(
        error.kind(),
        format!(
            "it takes a role, and the tokens in {file} cannot be read: {error}; be root or the user \
             that runs the broker, or name another file of tokens with --token-file"
        ),
    )
}

/// The user whose program listens at an address of this machine; `None` if that is nobody, or
/// several.
fn listening_user(address: SocketAddr) -> Option<u32> {
    let mut users = ["tcp", "tcp6"].into_iter().flat_map(|table| {
        let path = format!("/proc/thread-self/net/{table}");
        let text = fs::read_to_string(path).unwrap_or_default();
        let users: Vec<u32> = text
            .lines()
            .filter_map(|line| listener(line, address))
            .collect();
        users
    });
    let first = users.next()?;
    users.all(|other| other == first).then_some(first)
}

/// The user of a line of the kernel's table, if its socket listens at the address.
fn listener(line: &str, address: SocketAddr) -> Option<u32> {
    let mut words = line.split_ascii_whitespace();
    let (host, port) = words.nth(1)?.split_once(':')?;
    let state = words.nth(1)?;
    let user = words.nth(3)?;
    let at = kernel_address(host)?;
    let is_there = at.is_unspecified() || at == address.ip().to_canonical();
    // TCP_LISTEN.
    (state == "0A" && is_there && u16::from_str_radix(port, 16) == Ok(address.port()))
        .then(|| user.parse().ok())
        .flatten()
}

/// An address as the kernel prints it: words of 32 bits in the order of the machine.
fn kernel_address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::with_capacity(16);
    for word in text.as_bytes().chunks(8) {
        let word = std::str::from_utf8(word).ok()?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
    }
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt as _;
    use std::thread;

    /// Serves a request with each of the answers; returns the address and what was asked.
    fn serve(answers: Vec<String>) -> (SocketAddr, thread::JoinHandle<Vec<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = thread::spawn(move || {
            let one = |answer: String| {
                let (stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(&stream).lines().map(|line| line.unwrap());
                let asked = lines.take_while(|line| !line.is_empty()).collect();
                (&stream).write_all(answer.as_bytes()).unwrap();
                asked
            };
            answers.into_iter().map(one).collect()
        });
        (address, served)
    }

    #[test]
    fn the_body_is_what_follows_the_head() {
        let (address, served) = serve(vec!["HTTP/1.1 200 OK\r\nA: b\r\n\r\none\r\n\r\ntwo".into()]);
        assert_eq!(http_get(address, "/x").unwrap(), "one\r\n\r\ntwo");
        let asked = served.join().unwrap().remove(0);
        assert_eq!(asked[0], "GET /x HTTP/1.0");
        assert!(asked.contains(&format!("Host: {address}")));
    }

    #[test]
    fn another_status_and_other_protocols_are_errors() {
        for answer in ["HTTP/1.1 503 No\r\n\r\n{}", "hello\r\n\r\n", "hello"] {
            let (address, served) = serve(vec![answer.into()]);
            let error = http_get(address, "/x").unwrap_err().to_string();
            assert!(error.contains(&format!("http://{address}/x")), "{error}");
            served.join().unwrap();
        }
    }

    /// A file of tokens with that mode, and a challenge that names it.
    fn challenged(mode: u32) -> (tempfile::NamedTempFile, String) {
        let mut file = tempfile::Builder::new()
            .prefix("to\\k\"en")
            .tempfile()
            .unwrap();
        let (read, all) = ("r".repeat(30), "a".repeat(30));
        write!(file, "read {read}\nadminister {all}\n").unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        let path = file
            .path()
            .to_str()
            .unwrap()
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        let answer = format!(
            "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"punctual\", \
             token_file=\"{path}\"\r\n\r\n{{}}"
        );
        (file, answer)
    }

    #[test]
    fn the_least_token_that_suffices_is_shown_where_it_is_asked_for() {
        let ok = "HTTP/1.1 200 OK\r\n\r\n{}".to_owned();
        for (method, token) in [("GET", "r".repeat(30)), ("POST", "a".repeat(30))] {
            let (_file, challenge) = challenged(0o600);
            let (address, served) = serve(vec![challenge, ok.clone()]);
            let api = Api::new(HttpPlace::Tcp(address), None);
            assert_eq!(api.send(method, "/x", "").unwrap().status, 200);
            let asked = served.join().unwrap();
            let shows = format!("Authorization: Bearer {token}");
            assert!(!asked[0].contains(&shows), "{asked:?}");
            assert!(asked[1].contains(&shows), "{asked:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_and_one_of_another_user_are_not_trusted() {
        let (_file, challenge) = challenged(0o644);
        let (address, served) = serve(vec![challenge]);
        let error = http_get(address, "/x").unwrap_err().to_string();
        assert!(error.contains("--token-file"), "{error}");
        served.join().unwrap();

        let at = "127.0.0.1:8080".parse().unwrap();
        let line = |host: &str, state: &str| {
            format!(
                "  0: {host}:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000 0 5 1"
            )
        };
        assert_eq!(listener(&line("0100007F", "0A"), at), Some(1000));
        assert_eq!(listener(&line("00000000", "0A"), at), Some(1000));
        let mapped = "0000000000000000FFFF00000100007F";
        assert_eq!(listener(&line(mapped, "0A"), at), Some(1000));
        for (host, state) in [("0100007F", "01"), ("0200007F", "0A"), ("x", "0A")] {
            assert_eq!(listener(&line(host, state), at), None, "{host} {state}");
        }
    }

    /// Before, the metadata were those of one file and the token that of another.
    #[test]
    fn the_file_that_was_opened_decides_whatever_its_path_leads_to_later() {
        let (file, _) = challenged(0o600);
        let own = fs::metadata(file.path()).unwrap().uid();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let lead_to = |target: &Path| {
            let link = directory.path().join("link");
            std::os::unix::fs::symlink(target, &link).unwrap();
            fs::rename(&link, &path).unwrap();
        };
        let (exposed, _) = challenged(0o644);
        lead_to(file.path());
        let good = TokenSource::open(&path).unwrap();
        lead_to(exposed.path());
        let bad = TokenSource::open(&path).unwrap();
        lead_to(Path::new("/dev/null"));
        assert!(good.is_private_to(own).unwrap());
        assert!(!good.is_private_to(own + 1).unwrap());
        assert!(!bad.is_private_to(own).unwrap());
        assert_eq!(good.token(HttpRole::Read).unwrap(), "r".repeat(30));
        let device = TokenSource::open(&path).unwrap();
        assert!(!device.is_private_to(0).unwrap());
    }

    #[test]
    fn places_are_read() {
        let place = |text: &str| text.parse::<HttpPlace>();
        assert_eq!(
            place("127.0.0.1:80").unwrap().to_string(),
            "http://127.0.0.1:80"
        );
        assert_eq!(place("unix:/x").unwrap(), HttpPlace::Unix("/x".into()));
        for text in ["", "unix:", "127.0.0.1", "http://127.0.0.1:80"] {
            assert!(place(text).is_err(), "{text}");
        }
    }
}
