//! Whether a template loops over the parts of a message's content: vLLM's rule
//! (`_detect_content_format`), by which it gives a template parts or a text.

use minijinja::machinery::ast::{Call, Expr, Stmt};
use minijinja::value::ValueKind;

use crate::dialect::SLICE_METHOD;

/// An assignment or a loop: the name, if it is one, and what it gets or goes through.
struct Binding<'t, 's> {
    name: Option<&'s str>,
    value: &'t Expr<'s>,
}

#[derive(Default)]
struct Found<'t, 's> {
    assignments: Vec<Binding<'t, 's>>,
    loops: Vec<Binding<'t, 's>>,
}

/// Whether `{% for part in message.content %}` occurs, where `message` is of a loop over `messages`
/// or over what was assigned from it.
pub(super) fn are_in(template: &Stmt<'_>) -> bool {
    let mut found = Found::default();
    found.read(template);
    found.loop_over_content().unwrap_or(false)
}

impl<'t, 's> Found<'t, 's> {
    fn read(&mut self, statement: &'t Stmt<'s>) {
        let mut all = |bodies: &[&'t [Stmt<'s>]]| {
            bodies.iter().copied().flatten().for_each(|statement| self.read(statement));
        };
        match statement {
            Stmt::Template(template) => all(&[&template.children]),
            Stmt::ForLoop(node) => {
                all(&[&node.body, &node.else_body]);
                self.loops.push(Binding { name: name_of(&node.target), value: &node.iter });
            }
            Stmt::IfCond(node) => all(&[&node.true_body, &node.false_body]),
            Stmt::WithBlock(node) => all(&[&node.body]),
            Stmt::Set(node) => {
                let binding = Binding { name: name_of(&node.target), value: &node.expr };
                self.assignments.push(binding);
            }
            Stmt::SetBlock(node) => all(&[&node.body]),
            Stmt::AutoEscape(node) => all(&[&node.body]),
            Stmt::FilterBlock(node) => all(&[&node.body]),
            Stmt::Block(node) => all(&[&node.body]),
            Stmt::Macro(node) => all(&[&node.body]),
            Stmt::CallBlock(node) => all(&[&node.macro_decl.body]),
            _ => {}
        }
    }

    /// Whether a loop is over content; `None` where vLLM's rule fails: at a target that is no name.
    fn loop_over_content(&self) -> Option<bool> {
        let mut lists = vec!["messages"];
        let mut next = 0;
        while let Some(list) = lists.get(next).copied() {
            next += 1;
            for Binding { name, value } in &self.assignments {
                if is_access(value, list, None) {
                    let name = (*name)?;
                    if !lists.contains(&name) {
                        lists.push(name);
                    }
                }
            }
        }
        let mut messages = Vec::new();
        for Binding { name, value } in &self.loops {
            if lists.iter().any(|list| is_access(value, list, None)) {
                messages.push((*name)?);
            }
        }
        let of_content =
            |value| messages.iter().any(|name| is_access(value, name, Some("content")));
        let found = self.loops.iter().find(|found| of_content(found.value))?;
        found.name.map(|_| true)
    }
}

fn name_of<'s>(target: &Expr<'s>) -> Option<&'s str> {
    match target {
        Expr::Var(var) => Some(var.id),
        _ => None,
    }
}

/// Whether an expression is a variable or its attribute `key`, through filters, tests and slices.
fn is_access(value: &Expr<'_>, name: &str, key: Option<&str>) -> bool {
    let is_name = |value: &Expr<'_>| name_of(value) == Some(name);
    match (value, key) {
        (Expr::Filter(filter), _) => {
            filter.expr.as_ref().is_some_and(|value| is_access(value, name, key))
        }
        (Expr::Test(test), _) => is_access(&test.expr, name, key),
        (Expr::Call(call), _) => sliced(call).is_some_and(|value| is_access(value, name, key)),
        (Expr::GetAttr(attribute), Some(key)) => attribute.name == key && is_name(&attribute.expr),
        (Expr::GetItem(item), Some(key)) => match &item.subscript_expr {
            Expr::Const(key_const) => {
                key_const.value.kind() == ValueKind::String
                    && key_const.value.as_str() == Some(key)
                    && is_name(&item.expr)
            }
            _ => false,
        },
        (value, None) => is_name(value),
        _ => false,
    }
}

/// Operand of a slice, see `dialect`.
fn sliced<'t, 's>(call: &'t Call<'s>) -> Option<&'t Expr<'s>> {
    match &call.expr {
        Expr::GetAttr(method) if method.name == SLICE_METHOD => Some(&method.expr),
        _ => None,
    }
}
