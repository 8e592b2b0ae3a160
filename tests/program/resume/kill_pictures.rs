//! SIGKILL at random moments of a run over pictures, one of which is another after each.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::images::picture;
use crate::random::Random;
use crate::resume::kill::{num_kills, seed};
use crate::resume::program::{finish, kill, run_of};

/// A model that sees, of random weights.
const SEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/smolvlm");

const NUM_PICTURES: u64 = 12;

/// Gives a picture of the folder this seed.
fn draw(folder: &Path, index: u64, seed: u64) {
    let side = 9 + (seed % 23) as u32;
    fs::write(folder.join(format!("{index}.png")), picture(side, seed as u32)).unwrap();
}

/// A folder of pictures and of rows, each picture in several.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    (0..NUM_PICTURES).for_each(|index| draw(folder.path(), index, index));
    let row = |id: u64| {
        let image = json!({"type": "image", "path": format!("{}.png", id * 7 % NUM_PICTURES)});
        let text = json!({"type": "text", "text": format!("What is {id}?")});
        let message = json!({"role": "user", "content": [image, text]});
        format!("{}\n", json!({"id": id, "messages": [message]}))
    };
    fs::write(folder.path().join("in.jsonl"), (0..240).map(row).collect::<String>()).unwrap();
    folder
}

fn job(folder: &Path, out: &str) -> Command {
    let flags = ["-i", "in.jsonl", "-o", out, "--max-tokens", "8", "--temperature", "0.8"];
    run_of(SEES, folder, &[&flags[..], &["--stats", "stats.json"]].concat())
}

/// Rows that the last process in the folder took over.
fn num_reused(folder: &Path) -> u64 {
    let text = fs::read_to_string(folder.join("stats.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["rows"]["reused"].as_u64().unwrap()
}

#[test]
fn killed_runs_over_changing_pictures_end_in_the_bytes_of_the_last_ones() {
    let (seed, mut random) = (seed(), Random::new(seed() ^ 0x91C7));
    println!("seed {seed}");
    let (mut num_done, mut num_taken_over, mut num_jobs) = (0, 0, 0);
    while num_done < num_kills().div_ceil(5) {
        let folder = folder();
        let path = folder.path();
        let begun = Instant::now();
        finish(&mut job(path, "first.jsonl")).assert_exit(0);
        let whole = begun.elapsed().as_micros() as u64;
        loop {
            let child = job(path, "out.jsonl").spawn().unwrap();
            sleep(Duration::from_micros(random.below(whole * 5 / 4)));
            if let Err(mut ended) = kill(child) {
                if ended.status.code() == Some(6) {
                    // The kill before came when all was done but for the names of the files.
                    ended.assert_says("error[output_complete]");
                    ended = finish(job(path, "out.jsonl").arg("--retry-failed"));
                }
                ended.assert_exit(0);
                num_taken_over += num_reused(path);
                break;
            }
            num_done += 1;
            if path.join("out.jsonl").exists() {
                // Complete, perhaps of the run before and its pictures: the next one says so.
                continue;
            }
            draw(path, random.below(NUM_PICTURES), 100 + random.below(1 << 20));
        }
        finish(&mut job(path, "straight.jsonl")).assert_exit(0);
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(read("out.jsonl"), read("straight.jsonl"));
        num_jobs += 1;
    }
    println!("seed {seed}: {num_done} kills, {num_jobs} jobs, {num_taken_over} rows taken over");
}
