//! AMX: whether it is there, its configuration, its products.
//!
//! The compiler knows nothing of tile registers. So a product is one piece of assembly, with its
//! sums in memory before and after; the configuration alone outlives it, and nothing else touches
//! that.
//! Instructions are as in Intel's manual, volume 2, and the order of a configuration's bytes as in
//! volume 1, 18.2.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

use super::{TILE_ROWS, TileBlock, TilePanel};

/// Bytes of a row of a tile.
const ROW_BYTES: u16 = 64;

/// Bytes that are asked for at once.
const LINE_BYTES: usize = 64;

/// CPUID leaf 7, EDX: bf16, tiles, int8.
const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// CPUID leaf 1, ECX: the system uses XSAVE.
const OSXSAVE: u32 = 1 << 27;

/// XCR0: the system saves the configuration and the tiles.
const TILE_STATE: u64 = 0b11 << 17;

/// Whether the CPU has tiles of bf16 and int8, and the system lets this process use them: all of
/// its threads, from then on.
pub(super) fn is_available() -> bool {
    has_tiles() && request_tiles()
}

fn has_tiles() -> bool {
    /// # Safety
    /// The system uses XSAVE.
    #[target_feature(enable = "xsave")]
    unsafe fn xcr0() -> u64 {
        // SAFETY: the caller's promise.
        unsafe { _xgetbv(0) }
    }
    let has_features = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FEATURES == FEATURES;
    // SAFETY: OSXSAVE says that the system uses XSAVE.
    has_features && __cpuid(1).ecx & OSXSAVE != 0 && unsafe { xcr0() } & TILE_STATE == TILE_STATE
}

#[cfg(target_os = "linux")]
fn request_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: it sets a permission of this process, and touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_tiles() -> bool {
    false
}

/// The operand of LDTILECFG.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// Sums in tiles 0 to 3 and rows of inputs in 4 and 5 have `rows` rows, panels in 6 have 16.
///
/// # Safety
/// The unit is available; a tile has 1 to 16 rows.
pub(super) unsafe fn configure(rows: usize) {
    let mut config = TileConfig {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        bytes_per_row: [0; 16],
        rows: [0; 16],
    };
    for tile in 0..8 {
        config.bytes_per_row[tile] = ROW_BYTES;
        config.rows[tile] = if tile < 6 { rows as u8 } else { TILE_ROWS as u8 };
    }
    // SAFETY: the caller's promise.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, preserves_flags)) }
}

/// The system need not save this thread's tiles any more.
///
/// # Safety
/// The unit is available.
pub(super) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, preserves_flags)) }
}

/// A product by the instruction of `$step`, for each tile of rows: its place in memory, the
/// register of the address of its rows, its tiles of sums and the register of their address.
/// `$find` finds a step of `$panel`, and `$pass` goes past it. Each step asks for its lines of
/// `next` while products, which take 16 cycles each, are under way.
///
/// A tile is zeroed as soon as nothing reads it any more. A core has few physical registers for
/// tiles, which two hardware threads share, and one that is zero takes none: where the other thread
/// of the core is busy, a step takes half the time so (docs/PERFORMANCE.md).
macro_rules! product {
    ($step:expr, ($find:literal $pass:literal $panel:expr), $block:ident, $sums:ident,
     $(($at:literal $rows:ident $c0:literal $c1:literal $to:ident))*) => {
        asm!(
            "test {left:e}, {left:e}",
            "jnz 2f",
            $(
                concat!("tileloadd tmm", $c0, ", [{", stringify!($to), "} + {sums}]"),
                concat!("tileloadd tmm", $c1, ", [{", stringify!($to), "} + {sums} + 64]"),
            )*
            "jmp 3f",
            "2:",
            $(
                concat!("tilezero tmm", $c0),
                concat!("tilezero tmm", $c1),
            )*
            "3:",
            $find,
            $step,
            $(concat!("add {", stringify!($rows), "}, 64"),)*
            "mov {left}, {lines}",
            "jmp 5f",
            "4:",
            "prefetcht0 [{next}]",
            "add {next}, 64",
            "dec {left}",
            "5:",
            "test {left}, {left}",
            "jnz 4b",
            $pass,
            "dec {steps}",
            "jnz 3b",
            $(
                concat!("tilestored [{", stringify!($to), "} + {sums}], tmm", $c0),
                concat!("tilestored [{", stringify!($to), "} + {sums} + 64], tmm", $c1),
                concat!("tilezero tmm", $c0),
                concat!("tilezero tmm", $c1),
            )*
            left = inout(reg) u64::from($block.is_first) => _,
            cs = in(reg) 128usize,
            stride = in(reg) $block.row_stride * 4,
            sums = in(reg) $sums.1 * 4,
            b = inout(reg) $panel => _,
            steps = inout(reg) $block.num_steps => _,
            next = inout(reg) $block.next.0 => _,
            lines = in(reg) $block.next.1.div_ceil(LINE_BYTES),
            $(
                $to = in(reg) $sums.0[$at],
                $rows = inout(reg) $block.rows[$at] => _,
            )*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _,
            options(nostack),
        )
    };
}

/// A step of one tile of rows, in tile 4, by both halves of a panel's step, in tile 6, which the
/// register `$b` points to.
macro_rules! one_tile {
    ($dot:literal, $b:literal) => {
        concat!(
            "tileloadd tmm4, [{a0} + {stride}]\n",
            concat!("tileloadd tmm6, [", $b, " + {cs}]\n"),
            concat!($dot, " tmm0, tmm4, tmm6\n"),
            "tilezero tmm6\n",
            concat!("tileloadd tmm6, [", $b, " + {cs} + 64]\n"),
            concat!($dot, " tmm1, tmm4, tmm6\n"),
            "tilezero tmm4\n",
            "tilezero tmm6",
        )
    };
}

/// A step of two tiles of rows, in tiles 4 and 5.
macro_rules! two_tiles {
    ($dot:literal, $b:literal) => {
        concat!(
            concat!("tileloadd tmm6, [", $b, " + {cs}]\n"),
            "tileloadd tmm4, [{a0} + {stride}]\n",
            concat!($dot, " tmm0, tmm4, tmm6\n"),
            "tileloadd tmm5, [{a1} + {stride}]\n",
            concat!($dot, " tmm2, tmm5, tmm6\n"),
            "tilezero tmm6\n",
            concat!("tileloadd tmm6, [", $b, " + {cs} + 64]\n"),
            concat!($dot, " tmm1, tmm4, tmm6\n"),
            "tilezero tmm4\n",
            concat!($dot, " tmm3, tmm5, tmm6\n"),
            "tilezero tmm5\n",
            "tilezero tmm6",
        )
    };
}

/// `bf16` and `int8` differ in one instruction.
macro_rules! kernel {
    ($name:ident, $dot:literal) => {
        /// The block by its panel; `sums` are the first of the first row of two tiles by 32
        /// columns, and the distance of rows.
        ///
        /// # Safety
        /// As `ConfiguredTiles::multiply_bf16`, with tiles of `rows` rows.
        pub(super) unsafe fn $name(block: &TileBlock, rows: usize, sums: (*mut u32, usize)) {
            let sums = ([sums.0, sums.0.wrapping_add(rows * sums.1)], sums.1);
            // SAFETY: the caller's promise.
            unsafe {
                match (block.num_tiles, block.panel) {
                    (1, TilePanel::Whole(panel)) => product!(
                        one_tile!($dot, "{b}"), ("" "add {b}, 2048" panel), block, sums,
                        (0 a0 0 1 c0)
                    ),
                    (1, TilePanel::Steps(panel)) => product!(
                        one_tile!($dot, "{left}"), ("mov {left}, [{b}]" "add {b}, 8" panel),
                        block, sums, (0 a0 0 1 c0)
                    ),
                    (_, TilePanel::Whole(panel)) => product!(
                        two_tiles!($dot, "{b}"), ("" "add {b}, 2048" panel), block, sums,
                        (0 a0 0 1 c0)(1 a1 2 3 c1)
                    ),
                    (_, TilePanel::Steps(panel)) => product!(
                        two_tiles!($dot, "{left}"), ("mov {left}, [{b}]" "add {b}, 8" panel),
                        block, sums, (0 a0 0 1 c0)(1 a1 2 3 c1)
                    ),
                }
            }
        }
    };
}

kernel!(bf16, "tdpbf16ps");
kernel!(int8, "tdpbssd");
