//! A compiled template, with what can make large values replaced by what counts first.
//!
//! minijinja limits the instructions of a render, not what its values take. So the instructions are
//! rewritten: what makes, compares, looks up or loops over values passes through filters of
//! `counted`. Filters, tests and methods are wrapped where they are registered. The instructions
//! are minijinja's own and unstable, so its version is pinned.

use std::collections::BTreeMap;

use minijinja::machinery::{self, CodeGenerator, Instruction, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use self_cell::self_cell;

use super::chains::Chains;
use super::content_loops;
use super::counted::{
    ASSIGNED, CHAINED, COMPARISONS, CONCATENATED, CONTAINS, COUNTED, INDEXED, LOOPED, NEGATED,
    OPERATORS, READ, UNPACKED,
};

/// Largest source; published ones stay below 64 KiB. The parser's stack grows with it.
const MAX_SOURCE: usize = 256 << 10;

/// Name of a template in errors; templates have no names of their own.
const NAME: &str = "chat_template";

struct Compiled<'a> {
    instructions: Instructions<'a>,
    blocks: BTreeMap<&'a str, Instructions<'a>>,
    loops_over_content: bool,
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
    pub(super) fn compile(source: String, syntax: SyntaxConfig) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE {
            let text = format!("the template is larger than {} KiB", MAX_SOURCE >> 10);
            return Err(Error::new(ErrorKind::SyntaxError, text));
        }
        Cell::try_new(source, |source| compiled(source, syntax)).map(Self)
    }

    /// Whether it loops over the content of messages.
    pub(super) fn loops_over_content(&self) -> bool {
        self.0.borrow_dependent().loops_over_content
    }

    /// Renders with the variables of `context`.
    pub(super) fn render(
        &self,
        environment: &Environment<'static>,
        context: Value,
    ) -> Result<String, Error> {
        let Compiled { instructions, blocks, .. } = self.0.borrow_dependent();
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        let escape = AutoEscape::None;
        machinery::eval(environment, instructions, context, blocks, &mut output, escape)?;
        Ok(text)
    }
}

fn compiled(source: &str, syntax: SyntaxConfig) -> Result<Compiled<'_>, Error> {
    let tree = machinery::parse(source, NAME, syntax)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    let chains = Chains::new()?;
    let blocks = blocks.into_iter().map(|(name, block)| (name, bounded(&block, &chains))).collect();
    let loops_over_content = content_loops::are_in(&tree);
    Ok(Compiled { instructions: bounded(&instructions, &chains), blocks, loops_over_content })
}

/// The same instructions with what counts in them; jumps lead where they led.
fn bounded<'a>(from: &Instructions<'a>, chains: &Chains) -> Instructions<'a> {
    let old: Vec<&Instruction<'a>> = (0..).map_while(|index| from.get(index)).collect();
    let mut new = Vec::with_capacity(old.len());
    let mut places = Vec::with_capacity(old.len() + 1);
    for (index, instruction) in (0..).zip(old) {
        places.push(new.len() as u32);
        new.extend(
            replaced(instruction, chains).into_iter().map(|instruction| (index, instruction)),
        );
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

/// Replacement of an instruction: the same result, counted.
fn replaced<'a>(instruction: &Instruction<'a>, chains: &Chains) -> Vec<Instruction<'a>> {
    let filter = |name, num_args| Instruction::ApplyFilter(name, Some(num_args), !0);
    // A filter that gives both operands back, for what comes next.
    let checked = |name| vec![filter(name, 2), Instruction::UnpackList(2), instruction.clone()];
    let counted = filter(COUNTED, 1);
    let then_counted = || vec![instruction.clone(), counted.clone()];
    // Values of the stack that are read in full before what comes next.
    let read = |count: usize| {
        let list = Instruction::BuildList(Some(count));
        vec![list, filter(READ, 1), Instruction::UnpackList(count), instruction.clone()]
    };
    match instruction {
        // Written as a value is, which counts it.
        Instruction::EmitRaw(text) => {
            let text = Value::from_safe_string((*text).to_string());
            vec![Instruction::LoadConst(text), Instruction::Emit]
        }
        Instruction::StringConcat => vec![filter(CONCATENATED, 2)],
        Instruction::Add => vec![filter(OPERATORS[0].0, 2)],
        Instruction::Sub => vec![filter(OPERATORS[1].0, 2)],
        Instruction::Mul => vec![filter(OPERATORS[2].0, 2)],
        Instruction::Div => vec![filter(OPERATORS[3].0, 2)],
        Instruction::IntDiv => vec![filter(OPERATORS[4].0, 2)],
        Instruction::Rem => vec![filter(OPERATORS[5].0, 2)],
        Instruction::Pow => vec![filter(OPERATORS[6].0, 2)],
        Instruction::Neg => vec![filter(NEGATED, 1)],
        Instruction::In => vec![filter(CONTAINS, 2)],
        Instruction::Eq => vec![filter(COMPARISONS[0], 2)],
        Instruction::Ne => vec![filter(COMPARISONS[1], 2)],
        Instruction::Lt => vec![filter(COMPARISONS[2], 2)],
        Instruction::Lte => vec![filter(COMPARISONS[3], 2)],
        Instruction::Gt => vec![filter(COMPARISONS[4], 2)],
        Instruction::Gte => vec![filter(COMPARISONS[5], 2)],
        Instruction::CompareAndPreserve(_) => match chains.place(instruction) {
            Some(place) => vec![filter(CHAINED[place], 2), Instruction::UnpackList(2)],
            None => read(2),
        },
        Instruction::GetItem => checked(INDEXED),
        Instruction::SetAttr(_) => checked(ASSIGNED),
        Instruction::PushLoop(_) | Instruction::FastRecurse => {
            vec![filter(LOOPED, 1), instruction.clone()]
        }
        // A text is unpacked too.
        Instruction::UnpackList(_) => vec![filter(UNPACKED, 1), instruction.clone()],
        // `loop(..)` goes back into a loop.
        Instruction::CallFunction("loop", Some(1)) => {
            vec![filter(LOOPED, 1), instruction.clone()]
        }
        // Keys are hashed.
        Instruction::BuildMap(pairs) if *pairs > 0 => [read(2 * pairs), vec![counted]].concat(),
        // What a loop does itself, and so without a wrapper.
        Instruction::CallMethod("changed" | "cycle", Some(count)) => read(usize::from(*count)),
        // Arguments that are lists at run time.
        Instruction::CallFunction(_, None) | Instruction::CallObject(None) => {
            [spread(instruction), vec![counted]].concat()
        }
        Instruction::CallMethod(_, None)
        | Instruction::ApplyFilter(_, None, _)
        | Instruction::PerformTest(_, None, _) => spread(instruction),
        Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::BuildMap(_)
        | Instruction::CallFunction(..)
        | Instruction::CallObject(_) => then_counted(),
        other => vec![other.clone()],
    }
}

/// A call whose number of arguments is on the stack: they are a list for a moment, which counts
/// them.
fn spread<'a>(call: &Instruction<'a>) -> Vec<Instruction<'a>> {
    let count = Instruction::ApplyFilter(COUNTED, Some(1), !0);
    vec![Instruction::BuildList(None), count, Instruction::UnpackLists(1), call.clone()]
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
