//! Signature Version 4 of AWS, as a header: what S3 and all that speak like it check. The key of a
//! day, a region and a service signs a text that names every part of the request which counts.

use ring::{digest, hmac};

use super::credentials::Credentials;
use crate::network::{hex, percent_encoded};

/// The name of the algorithm.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// A request as it is signed.
pub(super) struct Signable<'a> {
    /// `GET`, `PUT`, ...
    pub method: &'a str,
    /// Of the URL, percent-encoded.
    pub path: &'a str,
    /// Of the URL, percent-encoded, sorted.
    pub query: &'a str,
    /// Names in small letters, sorted; `host` among them.
    pub headers: &'a [(String, String)],
    /// SHA-256 of the body, in hexadecimal digits.
    pub body_sha256: &'a str,
}

/// When and where a signature holds.
pub(super) struct Scope<'a> {
    /// `20130524T000000Z`
    pub time: &'a str,
    /// `us-east-1`
    pub region: &'a str,
}

impl Signable<'_> {
    /// The value of `Authorization`.
    pub(super) fn authorization(&self, credentials: &Credentials, scope: &Scope<'_>) -> String {
        let day = &scope.time[..8];
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let lines: String =
            self.headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let request = [self.method, self.path, self.query, &lines, &names, self.body_sha256];
        let place = format!("{day}/{}/s3/aws4_request", scope.region);
        let request = sha256(request.join("\n").as_bytes());
        let text = format!("{ALGORITHM}\n{}\n{place}\n{request}", scope.time);

        let mut key = format!("AWS4{}", credentials.secret()).into_bytes();
        for part in [day, scope.region, "s3", "aws4_request"] {
            key = keyed(&key, part.as_bytes());
        }
        let signature = hex(&keyed(&key, text.as_bytes()));
        let who = credentials.access_key();
        format!(
            "{ALGORITHM} Credential={who}/{place}, SignedHeaders={names}, Signature={signature}"
        )
    }
}

/// A query as it is signed and sent: encoded, and sorted by name.
pub(super) fn query(parameters: &[(&str, &str)]) -> String {
    let encoded = |(name, value): &(&str, &str)| {
        format!("{}={}", percent_encoded(name), percent_encoded(value))
    };
    let mut parts: Vec<String> = parameters.iter().map(encoded).collect();
    parts.sort();
    parts.join("&")
}

/// SHA-256, in hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn keyed(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, bytes).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::percent_encoded_path;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    /// Method, name, parameters, headers and body of a request, and its signature.
    type Case<'a> = (&'a str, &'a str, Pairs<'a>, Pairs<'a>, &'a [u8], &'a str);

    /// The four examples of "Signature Calculations for the Authorization Header: Transferring
    /// Payload in a Single Chunk" in the reference of Amazon's S3 API.
    #[test]
    fn requests_of_the_reference_have_its_signatures() {
        let credentials = Credentials::new(
            "AKIAIOSFODNN7EXAMPLE",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            None,
        );
        let body = b"Welcome to Amazon S3.";
        let put = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        let range = [("range", "bytes=0-9")];
        let life = [("lifecycle", "")];
        let list = [("prefix", "J"), ("max-keys", "2")];
        let cases: [Case<'_>; 4] = [
            (
                "GET",
                "/test.txt",
                &[],
                &range,
                b"",
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "PUT",
                "/test$file.text",
                &[],
                &put,
                body,
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                "GET",
                "/",
                &life,
                &[],
                b"",
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "GET",
                "/",
                &list,
                &[],
                b"",
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ];
        let scope = Scope { time: "20130524T000000Z", region: "us-east-1" };
        for (method, name, parameters, extra, body, wanted) in cases {
            let body_sha256 = sha256(body);
            let own = [
                ("host", "examplebucket.s3.amazonaws.com"),
                ("x-amz-content-sha256", body_sha256.as_str()),
                ("x-amz-date", scope.time),
            ];
            let pairs = own.iter().chain(extra);
            let mut headers: Vec<(String, String)> =
                pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            headers.sort();
            let signable = Signable {
                method,
                path: &percent_encoded_path(name),
                query: &query(parameters),
                headers: &headers,
                body_sha256: &body_sha256,
            };
            let found = signable.authorization(&credentials, &scope);
            assert!(found.ends_with(&format!("Signature={wanted}")), "{method} {name}: {found}");
        }
    }
}
