//! Whose keys sign: known ones, or those of a role, which expire and are asked for again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use ureq::Agent;
use ureq::http::{Request, StatusCode};

use super::error::{ErrorKind, StoreError};
use super::xml;
use crate::network::{Cause, agent, percent_encoded};
use crate::terminal::clock::now;
use vllm_batch_base::files::read as read_file;
use vllm_batch_base::run_date::RunDate;

/// How long before their end keys are replaced.
const MARGIN: i64 = 300;

/// How long the service of a machine may take that is next to us, or not there.
const NEAR: Duration = Duration::from_secs(2);

/// How long a service elsewhere may take.
const FAR: Duration = Duration::from_secs(30);

/// More than any token has.
const MAX_TOKEN_BYTES: u64 = 1 << 20;

/// How often it is asked.
const ATTEMPTS: u32 = 3;

/// Keys. There is no `Debug`: nothing shows them.
pub(super) struct Credentials {
    access_key: String,
    secret: String,
    token: Option<String>,
    /// As ISO 8601 in UTC; of a role.
    expires: Option<String>,
}

impl Credentials {
    /// Keys that last.
    pub(super) fn new(access_key: &str, secret: &str, token: Option<String>) -> Self {
        let (access_key, secret) = (access_key.to_owned(), secret.to_owned());
        Self { access_key, secret, token, expires: None }
    }

    pub(super) fn access_key(&self) -> &str {
        &self.access_key
    }

    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    fn is_fresh(&self, now: i64) -> bool {
        let soon = RunDate::from_unix(now + MARGIN).strftime("%Y-%m-%dT%H:%M:%SZ");
        self.expires.as_ref().is_none_or(|expires| *expires > soon)
    }
}

/// Where keys come from.
pub(super) enum Source {
    /// Variables, or a file.
    Known(Credentials),
    /// A role for whoever has a token of another service: of Kubernetes, mostly.
    WebIdentity { role: String, token_file: PathBuf, session: String, endpoint: String },
    /// The role of a container.
    Container { url: String, token: Option<String>, token_file: Option<PathBuf> },
    /// The role of a machine.
    Instance(String),
    /// There are none.
    Nobody,
}

/// What the services of containers and machines answer.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Role {
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
    expiration: Option<String>,
}

impl From<Role> for Credentials {
    fn from(role: Role) -> Self {
        let Role { access_key_id, secret_access_key, token, expiration } = role;
        Self { access_key: access_key_id, secret: secret_access_key, token, expires: expiration }
    }
}

/// Keys that are there, and how to get others.
pub(super) struct Keys {
    source: Source,
    held: Mutex<Option<Arc<Credentials>>>,
}

impl Keys {
    /// Of a source; the first one who needs them asks for them.
    pub(super) fn new(source: Source) -> Self {
        Self { source, held: Mutex::new(None) }
    }

    /// Keys that hold now.
    ///
    /// # Errors
    /// There are none, or the service that has them does not give them.
    pub(super) fn get(&self) -> Result<Arc<Credentials>, StoreError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(credentials) = held.as_ref().filter(|held| held.is_fresh(now())) {
            return Ok(Arc::clone(credentials));
        }
        let credentials = Arc::new(self.source.ask()?);
        *held = Some(Arc::clone(&credentials));
        Ok(credentials)
    }

    /// Forgets keys that were refused. False: there are no others.
    pub(super) fn forget(&self) -> bool {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
        !matches!(self.source, Source::Known(_) | Source::Nobody)
    }
}

impl Source {
    fn ask(&self) -> Result<Credentials, StoreError> {
        match self {
            Source::Known(known) => {
                Ok(Credentials::new(&known.access_key, &known.secret, known.token.clone()))
            }
            Source::WebIdentity { role, token_file, session, endpoint } => {
                let token = read(token_file)?;
                web_identity(endpoint, &[("RoleArn", role), ("RoleSessionName", session)], &token)
            }
            Source::Container { url, token, token_file } => {
                let of_file =
                    token_file.as_deref().map(read).transpose()?.map(|text| text.trim().to_owned());
                let token = of_file.or_else(|| token.clone());
                let mut request = Request::get(url);
                if let Some(token) = &token {
                    request = request.header("authorization", token);
                }
                role(&ask(&agent(NEAR, false), request, "", "the container's service")?)
            }
            Source::Instance(endpoint) => of_instance(endpoint),
            Source::Nobody => Err(nobody("no credentials for the object store were found")),
        }
    }

    /// What it is, without secrets.
    #[cfg(test)]
    pub(crate) fn name(&self) -> String {
        match self {
            Source::Known(keys) => format!("keys {}", keys.access_key),
            Source::WebIdentity { role, .. } => format!("web identity {role}"),
            Source::Container { url, .. } => format!("container {url}"),
            Source::Instance(endpoint) => format!("instance {endpoint}"),
            Source::Nobody => "nobody".to_owned(),
        }
    }
}

/// IMDSv2: a token first, then the name of the role, then its keys.
fn of_instance(endpoint: &str) -> Result<Credentials, StoreError> {
    let (agent, what) = (agent(NEAR, false), "the machine's metadata service");
    let request = Request::put(format!("{endpoint}/latest/api/token"))
        .header("x-aws-ec2-metadata-token-ttl-seconds", "21600");
    let token = ask(&agent, request, "", what).map_err(|_| {
        nobody(
            "no credentials for the object store were found: not in variables, nor in a profile, \
             and this machine has no role",
        )
    })?;
    let get = |path: &str| {
        let url = format!("{endpoint}/latest/meta-data/iam/security-credentials/{path}");
        let request = Request::get(url).header("x-aws-ec2-metadata-token", token.trim());
        ask(&agent, request, "", what)
    };
    let name = get("")?;
    let name = name.lines().next().unwrap_or_default().trim();
    role(&get(&percent_encoded(name))?)
}

/// AssumeRoleWithWebIdentity. The token is in the body: URLs are logged.
fn web_identity(
    endpoint: &str,
    parameters: &[(&str, &String)],
    token: &str,
) -> Result<Credentials, StoreError> {
    let mut form = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15".to_owned();
    for (name, value) in parameters {
        form.push_str(&format!("&{name}={}", percent_encoded(value)));
    }
    form.push_str(&format!("&WebIdentityToken={}", percent_encoded(token.trim())));
    let request = Request::post(format!("{}/", endpoint.trim_end_matches('/')))
        .header("content-type", "application/x-www-form-urlencoded");
    let answer = ask(&agent(FAR, true), request, &form, "AWS's token service")?;
    let value = |name: &str| xml::text_of(&answer, name);
    let keys = value("AccessKeyId").zip(value("SecretAccessKey"));
    let (access_key, secret) = keys.ok_or_else(|| odd("AWS's token service"))?;
    Ok(Credentials {
        access_key,
        secret,
        token: value("SessionToken"),
        expires: value("Expiration"),
    })
}

fn role(answer: &str) -> Result<Credentials, StoreError> {
    let role: Role = serde_json::from_str(answer).map_err(|_| odd("the service of its role"))?;
    Ok(role.into())
}

/// Asks a service a few times. Its answer has secrets, so no part of it is shown.
fn ask(
    agent: &Agent,
    request: ureq::http::request::Builder,
    body: &str,
    what: &str,
) -> Result<String, StoreError> {
    let request = request.body(body.to_owned()).map_err(|_| odd(what))?;
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match agent.run(request.clone()) {
            Ok(mut answer) if answer.status() == StatusCode::OK => {
                match answer.body_mut().read_to_string() {
                    Ok(text) => return Ok(text),
                    Err(error) => last = Cause::from(error).text(),
                }
            }
            Ok(answer) if answer.status().as_u16() < 500 => {
                last = format!("HTTP status {}", answer.status().as_u16());
                break;
            }
            Ok(answer) => last = format!("HTTP status {}", answer.status().as_u16()),
            Err(error) => last = Cause::from(error).text(),
        }
    }
    Err(nobody(&format!("{what} gives no credentials: {last}")))
}

fn odd(what: &str) -> StoreError {
    nobody(&format!("{what} does not answer as it should"))
}

fn nobody(message: &str) -> StoreError {
    StoreError::new(ErrorKind::Access, message).help(
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; on a machine or in a \
         container of AWS give it a role",
    )
}

fn read(path: &Path) -> Result<String, StoreError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        let message = format!("cannot read the token in {}: {error}", path.display());
        StoreError::new(ErrorKind::Access, message)
    };
    let bytes = read_file(path, MAX_TOKEN_BYTES).map_err(|error| unreadable(&error))?;
    String::from_utf8(bytes).map_err(|error| unreadable(&error))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A service that answers a request by what it has in it, and tells all that it heard.
    fn service(answers: &'static [(&str, &str)]) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&heard);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut bytes = vec![0; 1 << 16];
                let mut count = 0;
                let text = loop {
                    count += stream.read(&mut bytes[count..]).unwrap();
                    let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                    let is_whole = |body: &str| !text.starts_with("POST") || body.len() > 20;
                    if text.split_once("\r\n\r\n").is_some_and(|(_, body)| is_whole(body)) {
                        break text;
                    }
                };
                let found = answers.iter().find(|(part, _)| text.contains(part));
                let (status, body) = found.map_or((404, ""), |(_, body)| (200, body));
                log.lock().unwrap().push(text);
                let length = body.len();
                let head = format!("HTTP/1.1 {status} x\r\nConnection: close\r\n");
                let _ = write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}");
            }
        });
        (endpoint, heard)
    }

    const ROLE: &str = r#"{"Code":"Success","AccessKeyId":"ID","SecretAccessKey":"S","Token":"T",
        "Expiration":"2001-01-01T00:00:00Z"}"#;

    #[test]
    fn a_machines_role_is_asked_for_with_a_token_and_again_when_it_expires() {
        let (endpoint, heard) = service(&[
            ("PUT /latest/api/token ", "tok"),
            ("GET /latest/meta-data/iam/security-credentials/ ", "my-role\n"),
            ("GET /latest/meta-data/iam/security-credentials/my-role ", ROLE),
        ]);
        let keys = Keys::new(Source::Instance(endpoint));
        for asked in [3, 6] {
            let found = keys.get().unwrap();
            assert_eq!((found.access_key(), found.secret(), found.token()), ("ID", "S", Some("T")));
            let heard = heard.lock().unwrap();
            assert_eq!(heard.len(), asked, "it expired long ago");
            assert!(heard[asked - 1].contains("x-aws-ec2-metadata-token: tok"), "{heard:?}");
        }
        let (nobody, _) = service(&[]);
        let error = Keys::new(Source::Instance(nobody)).get().err().unwrap();
        assert!(error.to_string().contains("this machine has no role"), "{error}");
    }

    #[test]
    fn a_container_shows_its_token_and_a_web_identity_sends_it() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "a+b\n").unwrap();
        let (endpoint, heard) = service(&[("GET /role ", ROLE)]);
        let (url, token) = (format!("{endpoint}/role"), Some("bearer".to_owned()));
        let container = Source::Container { url, token, token_file: None };
        assert_eq!(Keys::new(container).get().unwrap().access_key(), "ID");
        assert!(heard.lock().unwrap()[0].contains("authorization: bearer"));

        let (endpoint, heard) = service(&[(
            "POST / ",
            "<R><Credentials><AccessKeyId>W</AccessKeyId><SecretAccessKey>w</SecretAccessKey>\
             <SessionToken>t</SessionToken><Expiration>9999-01-01T00:00:00Z</Expiration>\
             </Credentials></R>",
        )]);
        let (role, session) = ("arn:x".to_owned(), "me".to_owned());
        let keys = Keys::new(Source::WebIdentity { role, token_file, session, endpoint });
        assert_eq!(keys.get().unwrap().token(), Some("t"));
        assert_eq!(keys.get().unwrap().access_key(), "W");
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 1, "these hold");
        assert!(heard[0].contains("RoleArn=arn%3Ax&") && heard[0].ends_with("Token=a%2Bb"));
    }
}
