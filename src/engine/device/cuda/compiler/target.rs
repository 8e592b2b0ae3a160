//! Target of compilation: the GPU's own architecture, or, if this NVRTC is older than the GPU,
//! PTX of the newest one before it, which the driver compiles.

use cudarc::nvrtc::sys;

/// The architecture to compile for: with the instructions of this one only, where it has such.
pub(super) fn arch_name(major: u32, minor: u32) -> String {
    match (major, minor) {
        (9, 0) | (10, 0 | 3) => format!("sm_{major}{minor}a"),
        _ => format!("sm_{major}{minor}"),
    }
}

/// As NVRTC names them: 90 is of compute capability 9.0.
fn number(major: u32, minor: u32) -> u32 {
    10 * major + minor
}

/// Target among the architectures that NVRTC knows. `None`: it knows none that the device
/// runs.
pub(super) fn choose((major, minor): (u32, u32), known: &[u32]) -> Option<String> {
    let own = number(major, minor);
    if known.contains(&own) {
        return Some(arch_name(major, minor));
    }
    let newest = known.iter().filter(|&&arch| arch < own).max()?;
    // Without an `a`: what has one runs on no other device.
    Some(format!("compute_{newest}"))
}

/// Whether what is compiled is PTX, the text that drivers compile.
pub(super) fn is_ptx(arch: &str) -> bool {
    arch.starts_with("compute_")
}

/// The architectures that NVRTC knows, once it is loaded.
pub(super) fn known() -> Result<Vec<u32>, String> {
    let mut count = 0;
    // SAFETY: writes one number.
    let status = unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) };
    status.result().map_err(|error| format!("nvrtcGetNumSupportedArchs: {:?}", error.0))?;
    let mut archs = vec![0; count.max(0) as usize];
    // SAFETY: writes as many numbers as it said.
    let status = unsafe { sys::nvrtcGetSupportedArchs(archs.as_mut_ptr()) };
    status.result().map_err(|error| format!("nvrtcGetSupportedArchs: {:?}", error.0))?;
    Ok(archs.into_iter().map(|arch| arch.max(0) as u32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Architectures of NVRTC 12.8.
    const KNOWN: [u32; 9] = [75, 80, 86, 87, 89, 90, 100, 101, 120];

    #[test]
    fn architectures_with_instructions_of_their_own_have_an_a() {
        let names = [(8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)]
            .map(|(major, minor)| arch_name(major, minor));
        assert_eq!(names, ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120"]);
    }

    #[test]
    fn a_gpu_that_nvrtc_does_not_know_takes_ptx_of_the_newest_before_it() {
        let choose = |device| choose(device, &KNOWN);
        assert_eq!(choose((9, 0)).as_deref(), Some("sm_90a"));
        assert_eq!(choose((12, 0)).as_deref(), Some("sm_120"));
        for (device, arch) in [((10, 3), "101"), ((11, 0), "101"), ((12, 1), "120"), ((8, 8), "87")]
        {
            assert_eq!(choose(device), Some(format!("compute_{arch}")), "{device:?}");
            assert!(is_ptx(&format!("compute_{arch}")));
        }
        assert_eq!(choose((7, 0)), None);
        assert!(!is_ptx("sm_90a"));
    }
}
