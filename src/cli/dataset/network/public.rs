//! Requests to hosts that rows name: only to addresses of the public internet, whatever a name
//! resolves to. The addresses that were looked at are those that are connected to, so that a name
//! cannot resolve to others in between.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// How long a name or a connection is waited for.
const CONNECT: Duration = Duration::from_secs(5);

/// Azure's address of a machine's own data, which looks like any other.
const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Why a host is not asked: its addresses are none of the public internet.
#[derive(Debug)]
pub struct NotPublic;

impl fmt::Display for NotPublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the host is at no address of the public internet")
    }
}

impl std::error::Error for NotPublic {}

impl NotPublic {
    /// Whether it is the reason of an error.
    pub fn is_reason(error: &ureq::Error) -> bool {
        match error {
            ureq::Error::Io(error) => error.get_ref().is_some_and(|inner| inner.is::<NotPublic>()),
            _ => false,
        }
    }
}

/// An agent for such requests. It follows no redirect and uses no proxy, which would resolve names
/// itself. `allowed`: addresses that the user wrote, public or not. `whole`: the limit of a request
/// with its answer.
pub fn public_agent(allowed: Vec<IpAddr>, whole: Duration) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("vllm-batch/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .proxy(None)
        .timeout_resolve(Some(CONNECT))
        .timeout_connect(Some(CONNECT))
        .timeout_global(Some(whole))
        .build();
    let resolver = PublicResolver { inner: DefaultResolver::default(), allowed };
    Agent::with_parts(config, DefaultConnector::default(), resolver)
}

/// Finds public addresses alone.
#[derive(Debug)]
struct PublicResolver {
    inner: DefaultResolver,
    allowed: Vec<IpAddr>,
}

impl Resolver for PublicResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let written = uri.host().and_then(|host| {
            host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok()
        });
        let may_be_any = written.is_some_and(|written| self.allowed.contains(&written));
        let mut kept = self.inner.empty();
        for found in self.inner.resolve(uri, config, timeout)?.iter() {
            if may_be_any || is_public(found.ip()) {
                kept.push(*found);
            }
        }
        match kept.is_empty() {
            true => Err(ureq::Error::Io(io::Error::other(NotPublic))),
            false => Ok(kept),
        }
    }
}

/// Whether an address is one of the public internet.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = match (a, b, c) {
        // This network; shared by providers; of the IETF; of benchmarks; reserved and broadcast.
        (0, ..) | (100, 64..=127, _) | (192, 0, 0) | (198, 18..=19, _) | (240.., ..) => true,
        // Relays of 6to4, which lead elsewhere.
        (192, 88, 99) => true,
        _ => address == AZURE,
    };
    !(is_special
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        // An address of IPv4 within: mapped, translated (NAT64), or routed (6to4).
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            inner(high, low)
        }
        [0x2002, high, low, ..] => inner(high, low),
        // Tunnels of Teredo, the IETF's own, and documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Nothing else is given out.
        [first, ..] => (0x2000..=0x3fff).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_not_public_are_known() {
        let of = |text: &str| is_public(text.parse().unwrap());
        for public in ["8.8.8.8", "1.1.1.1", "100.128.0.1", "172.32.0.1", "2606:4700::1111"] {
            assert!(of(public), "{public}");
        }
        for mapped in ["::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"] {
            assert!(of(mapped), "{mapped}");
        }
        for own in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "168.63.129.16",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "fec0::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!of(own), "{own}");
        }
    }
}
