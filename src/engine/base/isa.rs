//! Instruction sets of CPUs, by name.

/// Instruction set of the CPU kernels. Results are equal within one set, not across sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 F, BW, DQ, VL, and what AVX2 needs: 16 lanes.
    Avx512,
    /// The same, with bf16 weights by `vdpbf16ps`: the inputs of linear layers are rounded to bf16.
    Avx512Bf16,
    /// AVX-512 and AMX: bf16 weights, and attention over bf16, by tiles, whose inputs are rounded
    /// to bf16.
    Amx,
    /// The bits of AMX on a CPU that has AVX-512; without, `AmxTwinAvx2` is taken for it.
    AmxTwin,
    /// The bits of AMX on a CPU that has what AVX2 needs: 16 lanes, in two registers.
    AmxTwinAvx2,
    /// AVX2, FMA, F16C: 8 lanes.
    Avx2,
    /// Base instruction set of aarch64: 8 lanes, in two registers.
    Neon,
    /// The same, with bf16 weights by `bfmmla` and `bfdot`: the inputs of linear layers are rounded
    /// to bf16.
    NeonBf16,
    /// Any CPU: arrays of 8, no fused multiply-add.
    Portable,
}

impl Isa {
    /// CPU features that it needs, in words.
    pub fn needs(self) -> &'static str {
        match self {
            Isa::Avx512 => "AVX-512 F, BW, DQ and VL",
            Isa::Avx512Bf16 => "AVX512-BF16",
            Isa::Amx => "AMX with bf16 and int8, AVX512-BF16, and a system that lets it use tiles",
            Isa::AmxTwin | Isa::AmxTwinAvx2 | Isa::Avx2 => "AVX2, FMA and F16C",
            Isa::Neon => "aarch64",
            Isa::NeonBf16 => "aarch64 with bf16 (`bfmmla`)",
            Isa::Portable => "nothing",
        }
    }

    /// Name as in `--cpu-isa`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::Amx => "amx",
            Isa::AmxTwin | Isa::AmxTwinAvx2 => "amx-twin",
            Isa::Avx2 => "avx2",
            Isa::Neon => "neon",
            Isa::NeonBf16 => "neon-bf16",
            Isa::Portable => "portable",
        }
    }

    /// Name in the kernel set: sets with one name give the same bits.
    pub fn kernel_set(self) -> &'static str {
        match self {
            Isa::AmxTwin | Isa::AmxTwinAvx2 => Isa::Amx.name(),
            isa => isa.name(),
        }
    }
}
