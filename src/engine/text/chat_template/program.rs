//! A compiled template, with what can make large values replaced by what counts first.
//!
//! minijinja limits the instructions of a render, not what its values take. So the instructions are
//! rewritten: `~`, `+`, `*`, comparisons and raw text pass through functions of `budget`. Filters
//! and methods are wrapped where they are registered. The instructions are minijinja's own and
//! unstable, so its version is pinned.

use std::collections::BTreeMap;

use minijinja::machinery::{self, CodeGenerator, Instruction, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use self_cell::self_cell;

use super::budget::{COMPARISONS, CONCATENATED, CONTAINED_IN, FACTORS, NESTED};
use crate::engine::text::dialect::MADE;

/// Largest source; published ones stay below 64 KiB. The parser's stack grows with it.
const MAX_SOURCE: usize = 256 << 10;

/// What errors call a template; templates have no names of their own.
const NAME: &str = "chat_template";

/// Stack of a thread that compiles or renders: values nest as deep as a render has instructions.
/// Only what is used takes memory.
const STACK_BYTES: usize = 512 << 20;

struct Compiled<'a> {
    instructions: Instructions<'a>,
    blocks: BTreeMap<&'a str, Instructions<'a>>,
}

self_cell!(
    struct Cell {
        owner: String,

        #[covariant]
        dependent: Compiled,
    }
);

/// A compiled template.
pub(super) struct Program(Cell);

impl Program {
    /// Compiles a source that is `dialect::translate`d.
    pub fn compile(source: String, syntax: SyntaxConfig) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE {
            let text = format!("the template is larger than {} KiB", MAX_SOURCE >> 10);
            return Err(Error::new(ErrorKind::SyntaxError, text));
        }
        on_deep_stack(|| Cell::try_new(source, |source| compiled(source, syntax)).map(Self))
            .unwrap_or_else(|| Err(engine_failed()))
    }

    /// Renders with the variables of `context`, one of which is a `Budget`.
    pub fn render(
        &self,
        environment: &Environment<'static>,
        context: Value,
    ) -> Result<String, Error> {
        let render = || {
            let Compiled { instructions, blocks } = self.0.borrow_dependent();
            let mut text = String::new();
            let mut output = machinery::make_string_output(&mut text);
            machinery::eval(
                environment,
                instructions,
                context,
                blocks,
                &mut output,
                AutoEscape::None,
            )?;
            Ok(text)
        };
        on_deep_stack(render).unwrap_or_else(|| Err(engine_failed()))
    }
}

/// minijinja 3.0.5 panics on some expressions; that must cost one row, not the run.
fn engine_failed() -> Error {
    Error::new(ErrorKind::InvalidOperation, "the chat template engine failed on this row")
}

/// Runs in a thread of its own; None if it panicked, or there was no thread to be had.
fn on_deep_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        builder.spawn_scoped(scope, run).ok()?.join().ok()
    })
}

fn compiled(source: &str, syntax: SyntaxConfig) -> Result<Compiled<'_>, Error> {
    let tree = machinery::parse(source, NAME, syntax)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    let blocks = blocks.into_iter().map(|(name, block)| (name, bounded(&block))).collect();
    Ok(Compiled { instructions: bounded(&instructions), blocks })
}

/// The same instructions with what counts in them; jumps lead where they led.
fn bounded<'a>(from: &Instructions<'a>) -> Instructions<'a> {
    let old: Vec<&Instruction<'a>> = (0..).map_while(|index| from.get(index)).collect();
    let mut new = Vec::with_capacity(old.len());
    let mut places = Vec::with_capacity(old.len() + 1);
    for (index, instruction) in (0..).zip(old) {
        places.push(new.len() as u32);
        new.extend(replaced(instruction).into_iter().map(|instruction| (index, instruction)));
    }
    places.push(new.len() as u32);
    let mut to = Instructions::new(from.name(), from.source());
    for (index, instruction) in new {
        let instruction = moved(instruction, &places);
        match (from.get_span(index), from.get_line(index)) {
            (Some(span), _) => to.add_with_span(instruction, span),
            (None, Some(line)) => to.add_with_line(instruction, line as u16),
            (None, None) => to.add(instruction),
        };
    }
    to
}

/// What runs in place of an instruction: the same result, counted.
fn replaced<'a>(instruction: &Instruction<'a>) -> Vec<Instruction<'a>> {
    // Calls a function with both operands; it gives them back in this order.
    let checked = |name| vec![Instruction::CallFunction(name, Some(2)), Instruction::UnpackList(2)];
    let made = Instruction::ApplyFilter(MADE, Some(1), !0);
    let nested = Instruction::ApplyFilter(NESTED, Some(1), !0);
    let compared = |index: usize| vec![Instruction::CallFunction(COMPARISONS[index], Some(2))];
    match instruction {
        // Written as a value is, which counts it.
        Instruction::EmitRaw(text) => {
            vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit]
        }
        Instruction::StringConcat => vec![Instruction::CallFunction(CONCATENATED, Some(2))],
        Instruction::Add => vec![Instruction::Add, made],
        Instruction::Mul => [checked(FACTORS), vec![Instruction::Mul, made]].concat(),
        Instruction::In => [checked(CONTAINED_IN), vec![Instruction::In]].concat(),
        Instruction::Eq => compared(0),
        Instruction::Ne => compared(1),
        Instruction::Lt => compared(2),
        Instruction::Lte => compared(3),
        Instruction::Gt => compared(4),
        Instruction::Gte => compared(5),
        Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::BuildMap(_)
        | Instruction::CallFunction(..)
        | Instruction::CallObject(_) => vec![instruction.clone(), nested],
        other => vec![other.clone()],
    }
}

fn moved<'a>(instruction: Instruction<'a>, places: &[u32]) -> Instruction<'a> {
    let to = |target: u32| places[target as usize];
    match instruction {
        Instruction::Iterate(target) => Instruction::Iterate(to(target)),
        Instruction::Jump(target) => Instruction::Jump(to(target)),
        Instruction::JumpIfFalse(target) => Instruction::JumpIfFalse(to(target)),
        Instruction::JumpIfFalseOrPop(target) => Instruction::JumpIfFalseOrPop(to(target)),
        Instruction::JumpIfTrueOrPop(target) => Instruction::JumpIfTrueOrPop(to(target)),
        Instruction::BuildMacro(name, target, flags) => {
            Instruction::BuildMacro(name, to(target), flags)
        }
        other => other,
    }
}
