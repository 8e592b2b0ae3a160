//! The operators of chained comparisons (`a < b < c`). minijinja's machinery has instructions for
//! them and no name for the operator in one, so each is compared with that of a known template.

use std::mem::discriminant;

use minijinja::Error;
use minijinja::machinery::{self, CodeGenerator, Instruction};
use minijinja::syntax::SyntaxConfig;

/// Templates with one chain each, in the order of `counted::CHAINED`.
const SOURCES: [&str; 8] = [
    "{{ a == b == c }}",
    "{{ a != b == c }}",
    "{{ a < b == c }}",
    "{{ a <= b == c }}",
    "{{ a > b == c }}",
    "{{ a >= b == c }}",
    "{{ a in b == c }}",
    "{{ a not in b == c }}",
];

/// An instruction with each operator.
pub(super) struct Chains(Vec<Instruction<'static>>);

impl Chains {
    /// Compiles the known templates.
    pub(super) fn new() -> Result<Self, Error> {
        let of = |source: &'static str| {
            let tree = machinery::parse(source, "chain", SyntaxConfig::default())?;
            let mut generator = CodeGenerator::new("chain", source);
            generator.compile_stmt(&tree);
            let (instructions, _) = generator.finish();
            let mut all = (0..).map_while(|index| instructions.get(index));
            Ok(all.find(|one| matches!(one, Instruction::CompareAndPreserve(_))).cloned())
        };
        let found: Result<Vec<_>, Error> = SOURCES.into_iter().map(of).collect();
        Ok(Self(found?.into_iter().flatten().collect()))
    }

    /// The place of a chained comparison's operator among the sources.
    pub(super) fn place(&self, instruction: &Instruction<'_>) -> Option<usize> {
        let Instruction::CompareAndPreserve(operator) = instruction else { return None };
        self.0.iter().position(|known| match known {
            Instruction::CompareAndPreserve(known) => discriminant(known) == discriminant(operator),
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_is_known() {
        let chains = Chains::new().expect("compiles");
        let places: Vec<_> = chains.0.iter().map(|known| chains.place(known)).collect();
        assert_eq!(places, (0..8).map(Some).collect::<Vec<_>>());
    }
}
