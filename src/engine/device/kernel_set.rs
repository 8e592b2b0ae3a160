//! `KernelSet`: what names the kernels of a device. Outputs are equal only within one set.

use std::collections::BTreeMap;

use super::cuda::gemm::hash_of_references;

/// The kernels of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSet {
    /// Device, instructions and versions.
    pub(super) kind: String,
    /// Of a GPU with cuBLASLt: bits of each matrix product that is prepared, by its shape.
    pub(super) products: Option<BTreeMap<String, String>>,
    /// Narrowed weights.
    pub(super) weights: &'static str,
    /// Weights are held as codes.
    pub(super) has_codes: bool,
    /// The KV cache, and ranks.
    pub(super) others: String,
}

impl KernelSet {
    /// Of a device that its kind alone names.
    pub(super) fn of_kind(kind: String) -> Self {
        Self { kind, products: None, weights: "", has_codes: false, others: String::new() }
    }

    /// Its name.
    pub fn name(&self) -> String {
        let Self { kind, products, weights, has_codes, others } = self;
        let products = products.as_ref().map(|products| {
            let products = products.iter().map(|(shape, bits)| (shape.clone(), bits.as_str()));
            format!("-{}", hash_of_references(products))
        });
        let codes = if *has_codes { "-codes" } else { "" };
        format!("{kind}{}{weights}{codes}{others}", products.unwrap_or_default())
    }

    /// The set of one device that has the layers of two, which are of one model. None: a product
    /// has other bits, or the devices are of different kinds.
    pub fn joined(mut self, other: Self) -> Option<Self> {
        let Self { kind, products, weights, has_codes, others } = other;
        let is_like = self.kind == kind && self.weights == weights && self.others == others;
        if !is_like || self.products.is_some() != products.is_some() {
            return None;
        }
        let own = self.products.get_or_insert_default();
        for (shape, bits) in products.iter().flatten() {
            if own.insert(shape.clone(), bits.clone()).is_some_and(|before| before != *bits) {
                return None;
            }
        }
        if products.is_none() {
            self.products = None;
        }
        self.has_codes |= has_codes;
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(products: &[(&str, &str)], has_codes: bool) -> KernelSet {
        let pair = |(shape, bits): &(&str, &str)| ((*shape).to_owned(), (*bits).to_owned());
        KernelSet {
            products: Some(products.iter().map(pair).collect()),
            has_codes,
            ..KernelSet::of_kind("cuda-sm90".to_owned())
        }
    }

    #[test]
    fn stages_have_the_set_of_one_device() {
        let whole = set(&[("a", "1"), ("b", "2"), ("c", "3")], true);
        let (first, last) =
            (set(&[("a", "1"), ("b", "2")], false), set(&[("b", "2"), ("c", "3")], true));
        assert_ne!(first.name(), whole.name());
        assert_eq!(first.clone().joined(last).unwrap(), whole);
        assert!(whole.name().starts_with("cuda-sm90-") && whole.name().ends_with("-codes"));
        assert_eq!(first.clone().joined(set(&[("b", "4")], false)), None, "other bits");
        let cpu = KernelSet::of_kind("cpu-avx2".to_owned());
        assert_eq!(cpu.clone().joined(cpu.clone()).unwrap().name(), "cpu-avx2");
        assert_eq!(first.joined(cpu), None);
    }
}
