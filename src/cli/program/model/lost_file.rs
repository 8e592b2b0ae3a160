//! A weight file that loses its bytes while it is read: said and ended from a signal handler, since
//! the read cannot return.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use vllm_batch_base::config::OnLostFile;
use vllm_batch_dataset::terminal::error::sanitized;
use vllm_batch_dataset::terminal::exit::Exit;

/// One message, and the exit code of rejected model files.
pub const ON_LOST_FILE: OnLostFile = OnLostFile { message, end };

fn message(path: &Path) -> String {
    format!(
        "error[model]: {}: the file was shortened, or could not be read, while it was loaded\n\
         help: leave a model's files alone while they are loaded, and run the same command again\n",
        sanitized(&path.display().to_string())
    )
}

/// Neither allocates nor locks: `dup`, `write` and `_exit`.
fn end(message: &str) -> ! {
    if let Ok(descriptor) = io::stderr().as_fd().try_clone_to_owned() {
        let _ = File::from(descriptor).write_all(message.as_bytes());
    }
    signal_hook::low_level::exit(Exit::Model.code().into())
}
