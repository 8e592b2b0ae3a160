//! Owners of what cuBLASLt and the driver hand out. Each is destroyed with its owner.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys as cu;

use super::error::{GemmError, cublas, cuda};
use super::key::GemmType;

/// cuBLASLt.
pub(super) struct Handle(pub lt::cublasLtHandle_t);

impl Handle {
    pub(super) fn new() -> Result<Self, GemmError> {
        let mut handle = null_mut();
        // SAFETY: `handle` is valid for the write.
        cublas("cublasLtCreate", unsafe { lt::cublasLtCreate(&mut handle) })?;
        Ok(Self(handle))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed here alone. A failure leaves nothing to be done.
        let _ = unsafe { lt::cublasLtDestroy(self.0) };
    }
}

/// A row-major matrix (rows, width): to cuBLASLt, a column-major one of `width` rows.
pub(super) struct Layout(pub lt::cublasLtMatrixLayout_t);

impl Layout {
    pub(super) fn new(kind: GemmType, rows: usize, width: usize) -> Result<Self, GemmError> {
        let mut layout = null_mut();
        // SAFETY: `layout` is valid for the write.
        let status = unsafe {
            lt::cublasLtMatrixLayoutCreate(
                &mut layout,
                kind.data_type(),
                width as u64,
                rows as u64,
                width as i64,
            )
        };
        cublas("cublasLtMatrixLayoutCreate", status)?;
        Ok(Self(layout))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed here alone.
        let _ = unsafe { lt::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

/// Descriptor of a product: types, transposition, epilogue, scales.
pub(super) struct Descriptor(pub lt::cublasLtMatmulDesc_t);

impl Descriptor {
    /// Sums in f32, never in TF32.
    pub(super) fn new() -> Result<Self, GemmError> {
        let mut descriptor = null_mut();
        // SAFETY: `descriptor` is valid for the write.
        let status = unsafe {
            lt::cublasLtMatmulDescCreate(
                &mut descriptor,
                lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                lt::cudaDataType_t::CUDA_R_32F,
            )
        };
        cublas("cublasLtMatmulDescCreate", status)?;
        Ok(Self(descriptor))
    }

    /// Sets an attribute, whose type is `V` in cuBLASLt's documentation.
    pub(super) fn set<V>(
        &self,
        attribute: lt::cublasLtMatmulDescAttributes_t,
        value: V,
    ) -> Result<(), GemmError> {
        let pointer = (&raw const value).cast();
        // SAFETY: `value` lives through the call, which reads its size in bytes.
        let status = unsafe {
            lt::cublasLtMatmulDescSetAttribute(self.0, attribute, pointer, size_of::<V>())
        };
        cublas("cublasLtMatmulDescSetAttribute", status)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed here alone.
        let _ = unsafe { lt::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// Limits of the heuristic's offers.
pub(super) struct Preference(pub lt::cublasLtMatmulPreference_t);

impl Preference {
    /// `reductions` is a mask of the reduction schemes that may be used.
    pub(super) fn new(workspace_bytes: usize, reductions: u32) -> Result<Self, GemmError> {
        use lt::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let mut preference = null_mut();
        // SAFETY: `preference` is valid for the write.
        let status = unsafe { lt::cublasLtMatmulPreferenceCreate(&mut preference) };
        cublas("cublasLtMatmulPreferenceCreate", status)?;
        let preference = Self(preference);
        preference
            .set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes as u64)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions)?;
        for attribute in [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(attribute, super::ALIGNMENT)?;
        }
        Ok(preference)
    }

    fn set<V>(
        &self,
        attribute: lt::cublasLtMatmulPreferenceAttributes_t,
        value: V,
    ) -> Result<(), GemmError> {
        let pointer = (&raw const value).cast();
        // SAFETY: `value` lives through the call, which reads its size in bytes.
        let status = unsafe {
            lt::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, pointer, size_of::<V>())
        };
        cublas("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed here alone.
        let _ = unsafe { lt::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

/// Memory of the device, for tuning alone.
pub(super) struct DeviceBuffer {
    pub address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    pub(super) fn new(bytes: usize) -> Result<Self, GemmError> {
        let mut address = 0;
        // SAFETY: `address` is valid for the write.
        cuda("cuMemAlloc", unsafe { cu::cuMemAlloc_v2(&mut address, bytes) })?;
        Ok(Self { address, bytes })
    }

    /// A buffer that repeats `pattern` to its end.
    pub(super) fn repeat(
        pattern: &[u8],
        bytes: usize,
        stream: cu::CUstream,
    ) -> Result<Self, GemmError> {
        let buffer = Self::new(bytes)?;
        let mut filled = pattern.len().min(bytes);
        // SAFETY: the buffer holds that many bytes; the synchronisation waits for the copy.
        cuda("cuMemcpyHtoDAsync", unsafe {
            cu::cuMemcpyHtoDAsync_v2(buffer.address, pattern.as_ptr().cast(), filled, stream)
        })?;
        // SAFETY: a stream of the current context.
        cuda("cuStreamSynchronize", unsafe { cu::cuStreamSynchronize(stream) })?;
        while filled < bytes {
            let more = filled.min(bytes - filled);
            // SAFETY: both ranges lie in the buffer, one behind the other.
            cuda("cuMemcpyDtoDAsync", unsafe {
                let end = buffer.address + filled as u64;
                cu::cuMemcpyDtoDAsync_v2(end, buffer.address, more, stream)
            })?;
            filled += more;
        }
        Ok(buffer)
    }

    /// Sets every byte, in the stream's order.
    pub(super) fn fill(&self, byte: u8, stream: cu::CUstream) -> Result<(), GemmError> {
        // SAFETY: the buffer has these bytes.
        cuda("cuMemsetD8Async", unsafe {
            cu::cuMemsetD8Async(self.address, byte, self.bytes, stream)
        })
    }

    /// The first bytes, once the stream has come here.
    pub(super) fn read(&self, len: usize, stream: cu::CUstream) -> Result<Vec<u8>, GemmError> {
        assert!(len <= self.bytes, "past the end of a buffer");
        let mut bytes = vec![0_u8; len];
        let pointer = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: `bytes` outlives the copy, which the synchronisation waits for.
        cuda("cuMemcpyDtoHAsync", unsafe {
            cu::cuMemcpyDtoHAsync_v2(pointer, self.address, len, stream)
        })?;
        // SAFETY: a stream of the current context.
        cuda("cuStreamSynchronize", unsafe { cu::cuStreamSynchronize(stream) })?;
        Ok(bytes)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed here alone; freeing waits for the device.
        let _ = unsafe { cu::cuMemFree_v2(self.address) };
    }
}

/// Two events that time what lies between them in a stream.
pub(super) struct Timer([cu::CUevent; 2]);

impl Timer {
    pub(super) fn new() -> Result<Self, GemmError> {
        let mut timer = Self([null_mut(); 2]);
        for event in &mut timer.0 {
            // SAFETY: `event` is valid for the write.
            cuda("cuEventCreate", unsafe { cu::cuEventCreate(event, 0) })?;
        }
        Ok(timer)
    }

    /// Microseconds that the device took for what `work` put into the stream.
    pub(super) fn time(
        &self,
        stream: cu::CUstream,
        work: impl FnOnce() -> Result<(), GemmError>,
    ) -> Result<f64, GemmError> {
        let [start, stop] = self.0;
        // SAFETY: our event, a stream of the same context.
        cuda("cuEventRecord", unsafe { cu::cuEventRecord(start, stream) })?;
        work()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: our events, a stream of the same context; the write is to a local.
        unsafe {
            cuda("cuEventRecord", cu::cuEventRecord(stop, stream))?;
            cuda("cuEventSynchronize", cu::cuEventSynchronize(stop))?;
            cuda("cuEventElapsedTime", cu::cuEventElapsedTime_v2(&mut milliseconds, start, stop))?;
        }
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        for event in self.0 {
            if !event.is_null() {
                // SAFETY: created by `new`, destroyed here alone.
                let _ = unsafe { cu::cuEventDestroy_v2(event) };
            }
        }
    }
}
