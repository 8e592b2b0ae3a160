//! Objects of a store that misbehaves: read in ranges, written whole.

mod lost_machine;
mod program;
mod server;

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use server::{Fault, Server};
use vllm_batch::cli::object_store::{
    ErrorKind, Object, ObjectName, Place, Store, StoreEnvironment, StoreError,
};

const NAME: &str = "s3://bucket/data/rows 1.jsonl";

fn name(text: &str) -> ObjectName {
    ObjectName::of(text.as_ref()).unwrap().unwrap()
}

fn store(server: &Server) -> Arc<Store> {
    Arc::new(Store::new(StoreEnvironment::local(&server.endpoint)))
}

/// Long enough for several ranges.
fn content() -> Vec<u8> {
    (0..20u32 << 18).flat_map(|number| number.to_le_bytes()).collect()
}

fn read(object: &Object) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    let read = object.read()?.read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| error.downcast::<StoreError>().unwrap())
}

#[test]
fn an_object_is_read_whole_whatever_breaks() {
    let server = Server::start();
    let content = content();
    server.put("bucket/data/rows 1.jsonl", &content);
    for fault in [
        Fault::None,
        Fault::Status(503, "SlowDown", 3),
        Fault::Status(429, "", 1),
        Fault::Status(400, "RequestTimeout", 1),
        Fault::Close(2),
        Fault::Cut(3),
    ] {
        let object = Object::new(store(&server), name(NAME));
        // An answer without a body says less of what is wrong.
        object.facts().unwrap();
        server.set_fault(fault);
        assert!(read(&object).unwrap() == content, "{fault:?}");
    }
    let log = server.take_log();
    let ranges: Vec<_> = log.iter().filter_map(|request| request.headers.get("range")).collect();
    assert_eq!(ranges[..3], ["bytes=0-65535", "bytes=65536-8454143", "bytes=8454144-16842751"]);
    let is_signed = |request: &server::Request| request.headers.contains_key("authorization");
    assert!(log.iter().all(is_signed));
    let pinned = log.iter().filter(|request| request.method == "GET");
    assert!(
        pinned.clone().count() > 0 && pinned.clone().all(|r| r.headers.contains_key("if-match"))
    );
}

#[test]
fn what_cannot_be_read_is_said_without_secrets() {
    let server = Server::start();
    server.put("bucket/data/rows 1.jsonl", &content());
    for (fault, kind, word) in [
        (Fault::Status(503, "SlowDown", 99), ErrorKind::Network, "503 (SlowDown)"),
        (Fault::Status(403, "AccessDenied", 99), ErrorKind::Access, "AccessDenied"),
        (Fault::Close(99), ErrorKind::Network, "127.0.0.1"),
        (Fault::Hang, ErrorKind::Network, "nothing for too long"),
        (Fault::IgnoreRange, ErrorKind::Network, "other bytes"),
        (Fault::OtherRange, ErrorKind::Network, "other bytes"),
    ] {
        let mut environment = StoreEnvironment::local(&server.endpoint);
        if fault == Fault::Hang {
            // Enough for a busy machine's server to say what the object is.
            environment.limits.stall = Duration::from_secs(1);
        }
        let object = Object::new(Arc::new(Store::new(environment)), name(NAME));
        object.facts().unwrap();
        server.set_fault(fault);
        let error = read(&object).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == kind && text.contains(word), "{fault:?}: {text}");
        assert!(!text.contains("s3cret") && !text.contains("test-secret"), "{text}");
        server.set_fault(Fault::None);
    }
    let absent = read(&Object::new(store(&server), name("s3://bucket/none"))).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
}

#[test]
fn an_object_that_changes_while_it_is_read_is_an_error() {
    let server = Server::start();
    for fault in [Fault::None, Fault::NoConditions] {
        server.put("bucket/data/rows 1.jsonl", &content());
        let object = Object::new(store(&server), name(NAME));
        let mut reader = object.read().unwrap();
        reader.read_exact(&mut [0; 1000]).unwrap();
        server.set_fault(fault);
        server.put("bucket/data/rows 1.jsonl", &content());
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
        let error = error.downcast::<StoreError>().unwrap();
        assert_eq!(error.kind(), ErrorKind::Changed, "{fault:?}");
        assert_eq!(read(&object).unwrap_err().kind(), ErrorKind::Changed, "it is remembered");
    }
}

#[test]
fn a_list_has_pages_and_markers_of_folders() {
    let server = Server::start();
    for key in ["d/", "d/a%1.jsonl", "d/b c.jsonl", "d/e.csv", "d/sub/f.jsonl", "g.jsonl"] {
        server.put(&format!("bucket/{key}"), if key.ends_with('/') { b"" } else { b"x" });
    }
    let listed = store(&server).list(&name("s3://bucket/d/")).unwrap();
    let keys: Vec<_> = listed.iter().map(|listed| (listed.key.as_str(), listed.size)).collect();
    let wanted =
        [("d/", 0), ("d/a%1.jsonl", 1), ("d/b c.jsonl", 1), ("d/e.csv", 1), ("d/sub/f.jsonl", 1)];
    assert_eq!(keys, wanted);
    assert_eq!(server.take_log().len(), 3, "two names to a page");
}

#[test]
fn a_small_object_is_put_once() {
    let server = Server::start();
    let store = store(&server);
    let put = |bytes: &[u8], place| store.put(&name(NAME), bytes, place).unwrap();
    server.set_fault(Fault::LostAnswer(1));
    assert!(put(b"mine", Place::Free), "the first request was heard, and it is ours");
    assert!(!put(b"other", Place::Free));
    assert_eq!(server.get("bucket/data/rows 1.jsonl").unwrap(), b"mine");
    server.set_fault(Fault::Status(409, "ConditionalRequestConflict", 1));
    assert!(put(b"other", Place::Any));
    store.remove(&name(NAME)).unwrap();
    store.remove(&name(NAME)).unwrap();
    assert!(server.names().is_empty());
}

#[test]
fn a_file_becomes_an_object_as_a_whole_or_not_at_all() {
    let server = Server::start();
    let store = store(&server);
    let small = b"a row\n".to_vec();
    let large = content()[..(1 << 20) + 5].to_vec();
    for bytes in [small, large] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let blake3 = blake3::hash(&bytes).to_hex().to_string();
        let upload = |blake3: &str, place| store.upload(&file, &name(NAME), blake3, place);
        let is_large = bytes.len() > 1000;

        server.set_fault(Fault::Status(403, "AccessDenied", 1));
        assert_eq!(upload(&blake3, Place::Free).unwrap_err().kind(), ErrorKind::Access);
        if is_large {
            // The parts go, and what puts them together is refused.
            server.set_fault(Fault::None);
            server.put("bucket/data/rows 1.jsonl", b"of another");
            assert_eq!(upload(&blake3, Place::Free).unwrap_err().kind(), ErrorKind::Exists);
            server.remove("bucket/data/rows 1.jsonl");
        }
        assert!(server.names().is_empty() && server.num_uploads() == 0, "nothing of it stays");

        server.set_fault(Fault::LostAnswer(1));
        upload(&blake3, Place::Free).unwrap();
        server.set_fault(Fault::None);
        assert!(server.get("bucket/data/rows 1.jsonl").unwrap() == bytes);
        upload(&blake3, Place::Free).unwrap();
        assert_eq!(upload("of others", Place::Free).unwrap_err().kind(), ErrorKind::Exists);
        upload("of others", Place::Any).unwrap();
        server.remove("bucket/data/rows 1.jsonl");
    }
}
