//! Recording and replay by the shim in place of a CUDA graph: every launch with its arguments'
//! bytes as they were. A second recording of a step can be compared with the first, which finds
//! whatever changes from step to step and is not in a buffer.

use std::ffi::c_void;
use std::sync::Arc;

use super::super::args::MAX_ARG_BYTES;
use super::super::driver::DevicePtr;
use super::super::error::{CudaError, Result};
use super::{HostDriver, HostFunction};

/// Launches queued between `begin_capture` and `end_capture`.
pub(in super::super) struct HostGraph(Vec<Recorded>);

/// One piece of work.
pub(super) enum Recorded {
    Launch(Launch),
    Memset { ptr: DevicePtr, byte: u8, bytes: usize },
    Copy { dst: DevicePtr, src: DevicePtr, bytes: usize },
    Work { what: String, work: Work },
}

/// Stand-in for the work of a library.
type Work = Box<dyn Fn() + Send + Sync>;

/// A launch with copies of its arguments.
pub(super) struct Launch {
    name: Arc<str>,
    function: HostFunction,
    grid: [u32; 3],
    block: u32,
    smem: usize,
    args: Vec<Argument>,
}

/// An argument's bytes, aligned as any may be.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(16))]
struct Argument {
    bytes: [u8; MAX_ARG_BYTES],
    size: usize,
}

impl Launch {
    /// # Safety
    /// As `Driver::launch`; and no argument has padding.
    pub(super) unsafe fn new(
        (name, function): (&Arc<str>, &HostFunction),
        grid: [u32; 3],
        (block, smem): (u32, usize),
        (pointers, sizes): (&[*mut c_void], &[u8]),
    ) -> Self {
        let copy = |(pointer, size): (&*mut c_void, &u8)| {
            let mut bytes = [0; MAX_ARG_BYTES];
            let size = usize::from(*size);
            // SAFETY: the caller's promise, and no argument has more bytes.
            unsafe { std::ptr::copy_nonoverlapping(pointer.cast(), bytes.as_mut_ptr(), size) };
            Argument { bytes, size }
        };
        let args = pointers.iter().zip(sizes).map(copy).collect();
        Self { name: Arc::clone(name), function: function.clone(), grid, block, smem, args }
    }

    /// First difference from another recording.
    fn difference(&self, again: &Self) -> Option<String> {
        let name = &self.name;
        if self.name != again.name {
            return Some(format!("{name} was launched, and {} is now", again.name));
        }
        if (self.grid, self.block, self.smem) != (again.grid, again.block, again.smem) {
            return Some(format!("{name} is launched with another size"));
        }
        let changed = (0..self.args.len()).find(|&i| again.args.get(i) != Some(&self.args[i]));
        changed.map(|index| format!("argument {index} of {name} has changed"))
    }
}

impl Recorded {
    fn difference(&self, again: &Self) -> Option<String> {
        match (self, again) {
            (Self::Launch(then), Self::Launch(now)) => then.difference(now),
            (Self::Memset { .. } | Self::Copy { .. }, _)
            | (Self::Work { .. }, Self::Work { .. }) => {
                let (then, now) = (self.text(), again.text());
                (then != now).then(|| format!("{then} has become {now}"))
            }
            _ => Some(format!("{} has become {}", self.text(), again.text())),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Launch(launch) => format!("a launch of {}", launch.name),
            Self::Memset { ptr, byte, bytes } => {
                format!("a memset of {bytes} bytes at {:#x} to {byte}", ptr.0)
            }
            Self::Copy { dst, src, bytes } => {
                format!("a copy of {bytes} bytes from {:#x} to {:#x}", src.0, dst.0)
            }
            Self::Work { what, .. } => what.clone(),
        }
    }
}

impl HostGraph {
    /// Fails where a recording of the same step would not be the same.
    pub(in super::super) fn check_same(&self, again: &Self) -> Result<()> {
        let changed = |what: String| {
            let detail = "a replay would have what it was, so it belongs in a buffer";
            Err(CudaError::new("replay", "", what, detail))
        };
        let mut pairs = self.0.iter().zip(&again.0);
        if let Some(what) = pairs.find_map(|(then, now)| then.difference(now)) {
            return changed(what);
        }
        match (self.0.len(), again.0.len()) {
            (then, now) if then == now => Ok(()),
            (then, now) => changed(format!("{then} launches were recorded, and {now} are queued")),
        }
    }
}

impl HostDriver {
    pub(in super::super) fn begin_capture(&self) -> Result<()> {
        let mut state = self.state();
        if state.recording.is_some() {
            return Err(CudaError::new("begin_capture", "", "already recording", ""));
        }
        state.recording = Some(Vec::new());
        Ok(())
    }

    pub(in super::super) fn end_capture(&self) -> Result<HostGraph> {
        let mut state = self.state();
        let recording = state.recording.take();
        if std::mem::take(&mut state.has_lost_recording) {
            let code = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
            return Err(CudaError::new("end_capture", "", code, ""));
        }
        let failed = || CudaError::new("end_capture", "", "nothing captured", "");
        recording.filter(|recorded| !recorded.is_empty()).map(HostGraph).ok_or_else(failed)
    }

    /// Ends the recording as another engine on the same GPU can.
    #[cfg(test)]
    pub fn lose_recording(&self) {
        self.state().has_lost_recording = true;
    }

    /// Does all that was recorded.
    pub(in super::super) fn launch_graph(&self, graph: &HostGraph) -> Result<()> {
        for recorded in &graph.0 {
            match recorded {
                Recorded::Launch(launch) => self.relaunch(launch)?,
                Recorded::Memset { ptr, byte, bytes } => self.memset(*ptr, *byte, *bytes)?,
                Recorded::Copy { dst, src, bytes } => {
                    self.copy_device_to_device(*dst, *src, *bytes)?;
                }
                Recorded::Work { work, .. } => work(),
            }
        }
        Ok(())
    }

    fn relaunch(&self, launch: &Launch) -> Result<()> {
        let Launch { name, function, grid, block, smem, args } = launch;
        let mut args = args.clone();
        let sizes: Vec<u8> = args.iter().map(|arg| arg.size as u8).collect();
        let mut pointers: Vec<*mut c_void> =
            args.iter_mut().map(|arg| arg.bytes.as_mut_ptr().cast()).collect();
        let args = (&mut pointers[..], &sizes[..]);
        // SAFETY: who recorded it made the promise of `Driver::launch` for every replay.
        unsafe { self.launch((name, function), *grid, (*block, *smem), args) }
    }

    /// Does what a library would queue, or records it. `what` tells it from other work.
    pub fn run(&self, what: impl FnOnce() -> String, work: Work) {
        let mut state = self.state();
        if let Some(recording) = &mut state.recording {
            return recording.push(Recorded::Work { what: what(), work });
        }
        drop(state);
        work();
    }

    /// Records, if it is recording.
    pub(super) fn records(&self, make: impl FnOnce() -> Recorded) -> bool {
        let mut state = self.state();
        state.recording.as_mut().map(|recording| recording.push(make())).is_some()
    }

    /// Refuses calls that a captured stream refuses, or that would be replayed with other contents.
    pub(super) fn refuse_while_recording(&self, call: &'static str) -> Result<()> {
        match self.state().recording {
            None => Ok(()),
            Some(_) => Err(CudaError::new(call, "", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "")),
        }
    }
}
