//! Reads what ptxas reports with `-v`.

/// Resources of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's registers stored to memory and loaded again. Should be 0.
    pub spill_bytes: u32,
    /// Bytes of a thread's arrays in memory. Should be 0.
    pub stack_bytes: u32,
    /// Static shared memory of a block.
    pub smem: u32,
}

/// The usage of each entry, in the order of the log.
pub(super) fn parse(log: &str) -> Vec<(String, ResourceUsage)> {
    let mut kernels: Vec<(String, ResourceUsage)> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default();
            kernels.push((name.to_owned(), ResourceUsage::default()));
        }
        let Some((_, usage)) = kernels.last_mut() else { continue };
        if let Some(stack) = number_before(line, " bytes stack frame") {
            usage.stack_bytes = usage.stack_bytes.max(stack);
            let spills = [" bytes spill stores", " bytes spill loads"];
            usage.spill_bytes +=
                spills.iter().filter_map(|text| number_before(line, text)).sum::<u32>();
        }
        if let Some(registers) = number_before(line, " registers") {
            usage.registers = registers;
            usage.smem = number_before(line, " bytes smem").unwrap_or(0);
        }
    }
    kernels
}

fn number_before(line: &str, text: &str) -> Option<u32> {
    let (before, _) = line.split_once(text)?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_of_a_report_is_read() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'add' for 'sm_90a'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 31 registers, used 1 barriers, 9216 bytes smem
ptxas info    : Compiling entry function 'norm' for 'sm_90a'
ptxas info    : Function properties for norm
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, 400 bytes cmem[0]
";
        let add = ResourceUsage { registers: 31, spill_bytes: 0, stack_bytes: 0, smem: 9216 };
        let norm = ResourceUsage { registers: 255, spill_bytes: 20, stack_bytes: 24, smem: 0 };
        assert_eq!(parse(log), [("add".to_owned(), add), ("norm".to_owned(), norm)]);
        assert!(parse("").is_empty());
    }
}
