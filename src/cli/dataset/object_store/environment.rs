//! `StoreEnvironment`: where the store is and whose keys are used, as the tools of AWS find them:
//! variables, a web identity, a profile, a container's or a machine's role, in this order.

use crate::PROGRAM;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::credentials::{Credentials, Source};
use super::error::{ErrorKind, StoreError};
use super::profile::Sections;
use crate::network::NetworkLimits;
use vllm_batch_base::files::read as read_file;

/// Where buckets are whose region nobody says; one that is elsewhere says so.
const DEFAULT_REGION: &str = "us-east-1";

/// More than any file of profiles has.
const MAX_PROFILE_BYTES: u64 = 16 << 20;

/// Parts of large objects.
const PART: u64 = 64 << 20;

/// Where a container of Amazon's asks for its role.
const CONTAINER_HOST: &str = "http://169.254.170.2";

/// Hosts that may hear a container's token without encryption: they are on the same machine.
const CONTAINER_HOSTS: [&str; 5] =
    ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]", "127.0.0.1", "localhost"];

/// Where a machine of Amazon's asks for its role.
const INSTANCE_ENDPOINT: &str = "http://169.254.169.254";

/// All that is asked before the first request.
pub struct StoreEnvironment {
    /// The base of every request, where it is not Amazon's: without a trailing slash.
    pub endpoint: Option<String>,
    /// Where signatures hold.
    pub region: String,
    /// Buckets stand in the path, and not in the name of the host.
    pub path_style: bool,
    /// Patience with the network.
    pub limits: NetworkLimits,
    /// Longer files go in parts of this many bytes, one in memory at a time.
    pub part: u64,
    /// Whose keys.
    pub(super) source: Source,
}

impl StoreEnvironment {
    /// From the process environment.
    ///
    /// # Errors
    /// As `from_lookup`.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads AWS's variables")]
    pub fn from_env() -> Result<Self, StoreError> {
        Self::from_lookup(|name| std::env::var(name).ok(), std::env::home_dir())
    }

    /// From any source of variables. An empty variable is an unset one.
    ///
    /// # Errors
    /// A profile is not there, or gets its keys in a way that is not known here; an endpoint is no
    /// URL.
    pub fn from_lookup(
        variable: impl Fn(&str) -> Option<String>,
        home_dir: Option<PathBuf>,
    ) -> Result<Self, StoreError> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let profile = Profile::read(&get, &home_dir.unwrap_or_else(|| PathBuf::from(".")))?;
        let endpoint = get("AWS_ENDPOINT_URL_S3")
            .or_else(|| get("AWS_ENDPOINT_URL"))
            .or_else(|| profile.endpoint());
        let endpoint = endpoint.map(|endpoint| checked(&endpoint)).transpose()?;
        let region = get("AWS_REGION")
            .or_else(|| get("AWS_DEFAULT_REGION"))
            .or_else(|| profile.get("region"))
            .unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let style = profile.get("s3.addressing_style");
        let path_style = match style.as_deref() {
            Some("path") => true,
            Some("virtual") => false,
            _ => endpoint.is_some(),
        };
        let source = source(&get, &profile, &region)?;
        let limits = NetworkLimits::default();
        Ok(Self { endpoint, region, path_style, limits, part: PART, source })
    }

    /// A store that others do not reach, for tests: any key, small parts, no wait between tries.
    pub fn local(endpoint: &str) -> Self {
        Self {
            endpoint: Some(endpoint.to_owned()),
            region: DEFAULT_REGION.to_owned(),
            path_style: true,
            limits: NetworkLimits {
                attempts: 4,
                wait: Duration::from_millis(1),
                ..NetworkLimits::default()
            },
            part: 1 << 20,
            source: Source::Known(Credentials::new("test", "test-secret", None)),
        }
    }
}

/// An endpoint without its last slash, and without the port that everyone knows: the signed name of
/// the host must be the one that is sent.
fn checked(endpoint: &str) -> Result<String, StoreError> {
    let plain = endpoint.trim_end_matches('/');
    let known = match plain.split_once("://") {
        Some(("https", _)) => plain.strip_suffix(":443"),
        Some(("http", _)) => plain.strip_suffix(":80"),
        _ => {
            let message = "AWS_ENDPOINT_URL or endpoint_url of the profile is no URL";
            return Err(StoreError::new(ErrorKind::BadName, message)
                .help("give it as in https://minio.example:9000"));
        }
    };
    Ok(known.unwrap_or(plain).to_owned())
}

fn source(
    get: &impl Fn(&str) -> Option<String>,
    profile: &Profile,
    region: &str,
) -> Result<Source, StoreError> {
    if let Some((id, secret)) = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY")) {
        return Ok(Source::Known(Credentials::new(&id, &secret, get("AWS_SESSION_TOKEN"))));
    }
    let web = |role: String, file: String, session: Option<String>| Source::WebIdentity {
        role,
        token_file: PathBuf::from(file),
        session: session.unwrap_or_else(|| PROGRAM.to_owned()),
        endpoint: get("AWS_ENDPOINT_URL_STS")
            .unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com")),
    };
    if let Some((role, file)) = get("AWS_ROLE_ARN").zip(get("AWS_WEB_IDENTITY_TOKEN_FILE")) {
        return Ok(web(role, file, get("AWS_ROLE_SESSION_NAME")));
    }
    let keys = profile.get("aws_access_key_id").zip(profile.get("aws_secret_access_key"));
    if let Some((id, secret)) = keys {
        let token = profile.get("aws_session_token");
        return Ok(Source::Known(Credentials::new(&id, &secret, token)));
    }
    if let Some((role, file)) = profile.get("role_arn").zip(profile.get("web_identity_token_file"))
    {
        return Ok(web(role, file, profile.get("role_session_name")));
    }
    profile.refuse_others()?;
    let container = get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        .map(|path| format!("{CONTAINER_HOST}{path}"))
        .or_else(|| get("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
    if let Some(url) = container {
        return container_source(get, url);
    }
    let is_off = get("AWS_EC2_METADATA_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
    Ok(match is_off {
        true => Source::Nobody,
        false => Source::Instance(
            get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
                .map_or(INSTANCE_ENDPOINT.to_owned(), |url| url.trim_end_matches('/').to_owned()),
        ),
    })
}

fn container_source(
    get: &impl Fn(&str) -> Option<String>,
    url: String,
) -> Result<Source, StoreError> {
    let host = crate::network::host(&url);
    let is_near = CONTAINER_HOSTS.iter().any(|near| {
        host == *near || host.strip_prefix(near).is_some_and(|rest| rest.starts_with(':'))
    });
    if !is_near && !url.starts_with("https://") {
        let message = "AWS_CONTAINER_CREDENTIALS_FULL_URI is of another machine, and not https";
        return Err(StoreError::new(ErrorKind::BadName, message)
            .help("a container's credentials come from its own machine, or by https"));
    }
    Ok(Source::Container {
        url,
        token: get("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
        token_file: get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(PathBuf::from),
    })
}

/// What both files say of one profile.
struct Profile {
    name: String,
    /// Its section in the file of settings.
    section: String,
    settings: Sections,
    keys: Sections,
}

impl Profile {
    fn read(get: &impl Fn(&str) -> Option<String>, home: &Path) -> Result<Self, StoreError> {
        let file = |variable: &str, name: &str| {
            let path = get(variable).map_or_else(|| home.join(".aws").join(name), PathBuf::from);
            // Whoever has no such file has the keys elsewhere.
            let bytes = read_file(&path, MAX_PROFILE_BYTES).unwrap_or_default();
            Sections::parse(&String::from_utf8_lossy(&bytes))
        };
        let settings = file("AWS_CONFIG_FILE", "config");
        let keys = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let asked = get("AWS_PROFILE").or_else(|| get("AWS_DEFAULT_PROFILE"));
        let name = asked.clone().unwrap_or_else(|| "default".to_owned());
        let long = format!("profile {name}");
        let is_short = name == "default" && !settings.has(&long);
        let section = if is_short { name.clone() } else { long };
        if asked.is_some() && !settings.has(&section) && !keys.has(&name) {
            let message = format!("AWS_PROFILE={name}: there is no such profile");
            return Err(StoreError::new(ErrorKind::BadName, message)
                .help("look into ~/.aws/config and ~/.aws/credentials, or unset AWS_PROFILE"));
        }
        Ok(Self { name, section, settings, keys })
    }

    fn get(&self, value: &str) -> Option<String> {
        let found = self.keys.get(&self.name, value);
        found.or_else(|| self.settings.get(&self.section, value)).map(str::to_owned)
    }

    fn endpoint(&self) -> Option<String> {
        let services = self.get("services").map(|name| format!("services {name}"));
        let of_s3 = services.and_then(|section| self.settings.get(&section, "s3.endpoint_url"));
        of_s3.map(str::to_owned).or_else(|| self.get("endpoint_url"))
    }

    /// Refuses a profile whose keys come from programs and requests that are not made here.
    fn refuse_others(&self) -> Result<(), StoreError> {
        let others = ["credential_process", "sso_session", "sso_start_url", "role_arn"];
        let Some(found) = others.into_iter().find(|name| self.get(name).is_some()) else {
            return Ok(());
        };
        let message =
            format!("the profile {} gets its keys by {found}, which is not done here", self.name);
        Err(StoreError::new(ErrorKind::Access, message).help(format!(
            "put them into variables: eval \"$(aws configure export-credentials --profile {} \
             --format env)\"",
            self.name
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)], home: &Path) -> Result<StoreEnvironment, StoreError> {
        let get = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        StoreEnvironment::from_lookup(get, Some(home.to_owned()))
    }

    fn home() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(home.path().join(".aws").join(name), text).unwrap();
        };
        write("credentials", "[default]\naws_access_key_id=D\naws_secret_access_key=d\n");
        write(
            "config",
            "[default]\nregion=eu-central-1\n[profile sso]\nsso_session=x\n[profile web]\n\
             role_arn=arn\nweb_identity_token_file=/token\n[profile local]\n\
             endpoint_url=http://127.0.0.1:9000/\naws_access_key_id=L\naws_secret_access_key=l\n\
             s3 =\n  addressing_style = virtual\n[profile empty]\nregion = x\n",
        );
        home
    }

    #[test]
    fn keys_are_found_in_the_order_of_the_tools_of_aws() {
        let (home, elsewhere) = (home(), tempfile::tempdir().unwrap());
        let keys = [("AWS_ACCESS_KEY_ID", "V"), ("AWS_SECRET_ACCESS_KEY", "v")];
        let web = [("AWS_ROLE_ARN", "arn"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/t")];
        let container = [("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x")];
        let all = [&keys[..], &web[..], &container[..]].concat();
        for (variables, folder, wanted) in [
            (all.clone(), home.path(), "keys V"),
            (all[2..].to_vec(), home.path(), "web identity arn"),
            (container.to_vec(), home.path(), "keys D"),
            (vec![("AWS_PROFILE", "web")], home.path(), "web identity arn"),
            (vec![("AWS_PROFILE", "local")], home.path(), "keys L"),
            (container.to_vec(), elsewhere.path(), "container http://169.254.170.2/x"),
            (vec![], elsewhere.path(), "instance http://169.254.169.254"),
            (vec![("AWS_EC2_METADATA_DISABLED", "true")], elsewhere.path(), "nobody"),
        ] {
            let environment = found(&variables, folder).unwrap();
            assert_eq!(environment.source.name(), wanted, "{variables:?}");
        }
        for (variables, word) in [
            (vec![("AWS_PROFILE", "sso")], "sso_session"),
            (vec![("AWS_PROFILE", "absent")], "no such profile"),
            (vec![("AWS_ENDPOINT_URL", "minio:9000")], "no URL"),
        ] {
            let error = found(&variables, home.path()).err().unwrap();
            assert!(error.to_string().contains(word), "{error}");
        }
        let far = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1.evil.example/x")];
        assert!(found(&far, elsewhere.path()).is_err());
    }

    #[test]
    fn the_endpoint_and_the_region_are_of_the_variables_or_the_profile() {
        let home = home();
        let of = |variables: &[(&str, &str)]| {
            let found = found(variables, home.path()).unwrap();
            (found.endpoint, found.region, found.path_style)
        };
        assert_eq!(of(&[]), (None, "eu-central-1".into(), false));
        let local = [("AWS_PROFILE", "local")];
        let endpoint = Some("http://127.0.0.1:9000".to_owned());
        assert_eq!(of(&local), (endpoint, "us-east-1".into(), false));
        let variables = [
            ("AWS_ENDPOINT_URL", "http://other"),
            ("AWS_ENDPOINT_URL_S3", "https://minio.example:443/"),
            ("AWS_DEFAULT_REGION", "b"),
            ("AWS_REGION", "a"),
        ];
        let endpoint = Some("https://minio.example".to_owned());
        assert_eq!(of(&variables), (endpoint, "a".into(), true));
    }
}
