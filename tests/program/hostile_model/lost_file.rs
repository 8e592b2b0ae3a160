//! A weight file that changes while it is read. The test runs itself again as a child, which opens
//! the files as a run does, shortens one, and reads on.

use std::fs::{self, OpenOptions};
use std::process::Command;

use vllm_batch::cli::model::lost_file::ON_LOST_FILE;
use vllm_batch::engine::checkpoint::weights::Checkpoint;

use super::{Folder, MODEL, Run};

const SHARD: &str = "model-00001-of-00003.safetensors";

/// Names the folder of the child's model.
const FOLDER: &str = "VLLM_BATCH_TEST_LOST_FILE";

const TENSOR: &str = "model.embed_tokens.weight";

#[test]
fn a_file_that_is_shortened_ends_the_process_with_one_message() {
    if let Some(folder) = child_folder() {
        let folder = std::path::Path::new(&folder);
        let mut checkpoint = Checkpoint::open(folder, Some(ON_LOST_FILE)).unwrap();
        let table = (TENSOR.to_owned(), vec![472, 48]);
        let norm = ("model.norm.weight".to_owned(), vec![48]);
        checkpoint.matrix(&table).unwrap();
        let file = OpenOptions::new().write(true).open(folder.join(SHARD)).unwrap();
        file.set_len(0).unwrap();
        checkpoint.vector(&norm, 0.0).unwrap();
        let sum: f32 = checkpoint.matrix(&table).unwrap().to_vec().iter().sum();
        panic!("read {sum} from a file without bytes");
    }
    let folder = Folder::new();
    let name =
        "hostile_model::lost_file::a_file_that_is_shortened_ends_the_process_with_one_message";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads", "1"]);
    command.env(FOLDER, folder.path().join("model"));
    let run = Run::of_any(&mut command);
    assert_eq!(run.code, Some(7), "{} {}", run.stdout, run.stderr);
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert!(lines.len() == 2 && lines[1].starts_with("help: "), "{}", run.stderr);
    assert!(lines[0].starts_with("error[model]: ") && lines[0].contains(SHARD), "{}", run.stderr);
}

#[expect(clippy::disallowed_methods, reason = "how the test talks to itself")]
fn child_folder() -> Option<std::ffi::OsString> {
    std::env::var_os(FOLDER)
}

/// Reads every tensor of the checkpoint, so that nothing is left over.
fn read_all(checkpoint: &mut Checkpoint) {
    let config = fs::read_to_string(format!("{MODEL}/config.json")).unwrap();
    let config = vllm_batch::engine::checkpoint::hf_config::HfConfig::parse(&config, "").unwrap();
    let spec = vllm_batch::engine::checkpoint::decoder_spec(&config).unwrap();
    for tensor in spec.tensors() {
        match tensor.1[..] {
            [len] => assert_eq!(checkpoint.vector(&tensor, 0.0).unwrap().len(), len),
            [rows, _] => assert_eq!(checkpoint.matrix(&tensor).unwrap().num_rows, rows),
            _ => panic!("{tensor:?} is no tensor of a model"),
        }
    }
}

#[test]
fn a_file_that_is_written_to_is_refused_and_one_that_is_replaced_is_not() {
    let folder = Folder::new();
    let model = folder.path().join("model");
    let open = || {
        let mut checkpoint = Checkpoint::open(&model, None).unwrap();
        read_all(&mut checkpoint);
        checkpoint
    };
    assert!(open().finish().is_ok());
    let checkpoint = open();
    let bytes = folder.read(SHARD);
    folder.write("new", &bytes);
    fs::rename(folder.model("new"), folder.model(SHARD)).unwrap();
    assert!(checkpoint.finish().is_ok(), "the old file is still mapped");
    let checkpoint = open();
    let file = OpenOptions::new().append(true).open(folder.model(SHARD)).unwrap();
    file.set_len(bytes.len() as u64 + 1).unwrap();
    let error = checkpoint.finish().unwrap_err().to_string();
    assert!(error.contains("has changed while it was read") && error.contains(SHARD), "{error}");
}
