//! The committed inputs of the fuzz targets, without libFuzzer: what a target once found stays
//! found, also where cargo-fuzz is not installed.

#[expect(dead_code, reason = "the panic hook is for libFuzzer")]
#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::fs;
use std::path::Path;

use targets::Target;

/// Fewer inputs of a target do not reach what it is for.
const MIN_INPUTS: usize = 4;

#[test]
fn every_target_holds_over_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for Target { name, check, .. } in targets::TARGETS {
        let listing = fs::read_dir(corpus.join(name)).expect(name);
        let mut paths: Vec<_> = listing.map(|entry| entry.expect(name).path()).collect();
        paths.sort();
        assert!(paths.len() >= MIN_INPUTS, "{name}: {} inputs", paths.len());
        for path in paths {
            println!("{}", path.display());
            check(&fs::read(&path).expect(name));
        }
    }
    let num_folders = fs::read_dir(corpus).expect("a corpus").count();
    assert_eq!(num_folders, targets::TARGETS.len(), "a corpus without its target");
}
