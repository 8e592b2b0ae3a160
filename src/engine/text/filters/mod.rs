//! Filters, tests and functions of jinja2, as transformers' sandbox has them.

mod globals;
pub(super) mod lists;
mod numbers;
mod text;

use std::sync::Arc;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, State, Value};

use super::chat_template::budget::Budget;
use super::chat_template::counted;
use super::chat_template::sequences::{Kind, Sequence};
use super::python::arguments::{bind, flag, refused, soft, unsupported};
use super::python::number::{self, Number};
use super::python::{json, operators, type_name};

/// Most items of a `range`, as in jinja2's sandbox.
const MAX_RANGE: u64 = 100_000;

/// A filter: of a value and its arguments.
type Filter = fn(&mut State<'_, '_>, &[Value]) -> Result<Value, Error>;

/// A function that a template calls.
type Global = fn(&[Value]) -> Result<Value, Error>;

const FILTERS: [(&str, Filter); 54] = [
    ("abs", numbers::abs),
    ("attr", attr),
    ("batch", lists::batch),
    ("capitalize", text::capitalize),
    ("center", text::center),
    ("count", lists::length),
    ("d", default),
    ("default", default),
    ("dictsort", lists::dictsort),
    ("e", text::escape_of),
    ("escape", text::escape_of),
    ("filesizeformat", numbers::filesizeformat),
    ("first", lists::first),
    ("float", numbers::float_of),
    ("forceescape", text::forceescape),
    ("format", text::format),
    ("groupby", lists::groupby),
    ("indent", text::indent),
    ("int", numbers::int_of),
    ("items", lists::items_of),
    ("join", lists::join),
    ("last", lists::last),
    ("length", lists::length),
    ("list", lists::list),
    ("lower", text::lower),
    ("map", lists::map),
    ("max", lists::max),
    ("min", lists::min),
    ("pprint", text::pprint),
    ("random", |_, _| Err(unsupported("`random`, whose prompts nobody could make again,"))),
    ("reject", lists::reject),
    ("rejectattr", lists::rejectattr),
    ("replace", text::replace),
    ("reverse", lists::reverse),
    ("round", numbers::round),
    ("safe", text::safe),
    ("select", lists::select),
    ("selectattr", lists::selectattr),
    ("slice", lists::slice),
    ("sort", lists::sort),
    ("string", text::string),
    ("striptags", text::striptags),
    ("sum", numbers::sum),
    ("title", text::title),
    ("tojson", |_, args| json::tojson(args)),
    ("trim", text::trim),
    ("truncate", text::truncate),
    ("unique", lists::unique),
    ("upper", text::upper),
    ("urlencode", text::urlencode),
    ("urlize", |_, _| Err(unsupported("`urlize`"))),
    ("wordcount", text::wordcount),
    ("wordwrap", |_, _| Err(unsupported("`wordwrap`"))),
    ("xmlattr", text::xmlattr),
];

/// Filters that only minijinja has.
const NOT_JINJA2: [&str; 5] = ["bool", "chain", "lines", "split", "zip"];

/// Gives an environment what transformers' sandbox has.
pub(super) fn add_to(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    for name in NOT_JINJA2 {
        environment.remove_filter(name);
    }
    for (name, filter) in FILTERS {
        let counts = Arc::clone(budget);
        let counted = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            counted::filtered(&counts, state, name, filter, args.into_values())
        };
        environment.add_filter(name, counted);
    }
    let counts = Arc::clone(budget);
    environment.add_function("raise_exception", move |message: &Value| -> Result<Value, Error> {
        counts.charge_all(message)?;
        Err(refused(soft(message)?))
    });
    let counts = Arc::clone(budget);
    environment.add_function("range", move |args: Rest<ValueOrKwargs>| {
        counted::made_items(&counts, numbers::range(&args.into_values())?)
    });
    let counts = Arc::clone(budget);
    environment.add_function("dict", move |args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        args.iter().try_for_each(|arg| counts.charge_all(arg).map(drop))?;
        counts.made(globals::dict(&args)?)
    });
    environment.add_function("lipsum", |_: Rest<ValueOrKwargs>| -> Result<Value, Error> {
        Err(unsupported("`lipsum`, whose prompts nobody could make again,"))
    });
    for (name, global) in [("cycler", globals::cycler as Global), ("joiner", globals::joiner)] {
        let counts = Arc::clone(budget);
        environment.add_function(name, move |args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            args.iter().try_for_each(|arg| counts.charge_all(arg).map(drop))?;
            global(&args)
        });
    }
    add_tests(environment);
}

/// Whether what is printed is escaped.
fn escapes(state: &State<'_, '_>) -> bool {
    !matches!(state.auto_escape(), AutoEscape::None)
}

/// Iterator of a filter that Python reads once.
fn iterator(name: &'static str, items: Vec<Value>) -> Result<Value, Error> {
    Ok(Sequence::value(Value::from(items), Kind::Iterator(name)))
}

fn range_of(items: Vec<Value>, text: String) -> Result<Value, Error> {
    Ok(Sequence::value(Value::from(items), Kind::Range(text)))
}

/// `default(value, default_value="", boolean=False)`.
fn default(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, other, boolean] = bind("default", args, 1, ["", "default_value", "boolean"])?;
    let value = value.unwrap_or_default();
    match value.is_undefined() || (flag(&boolean, false) && !value.is_true()) {
        true => Ok(other.unwrap_or_else(|| Value::from(""))),
        false => Ok(value),
    }
}

/// `attr(obj, name)`: what Python calls an attribute, which items of a dict are not.
fn attr(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, name] = bind("attr", args, 2, ["", "name"])?;
    let (value, name) = (value.unwrap_or_default(), name.unwrap_or_default());
    let name = soft(&name)?;
    match type_name(&value) {
        "dict"
            if !value.as_object().is_some_and(|object| object.type_name().contains("::vm::")) =>
        {
            Ok(Value::UNDEFINED)
        }
        "Undefined" => Err(refused("an undefined value is used")),
        "str" | "list" | "int" | "float" | "bool" | "NoneType" => Ok(Value::UNDEFINED),
        _ => value.get_attr(&name),
    }
}

fn add_tests(environment: &mut Environment<'static>) {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    for name in ["int", "safe", "startingwith", "endingwith"] {
        environment.remove_test(name);
    }
    environment.add_test("sequence", |value: &Value| {
        let is_iterator = type_name(value) == "generator";
        !is_iterator
            && type_name(value) != "dict_keys"
            && matches!(value.kind(), Map | Seq | String | Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    environment.add_test("callable", |value: &Value| {
        // What is undefined has a method for calls, which fails.
        value.is_undefined() || value.kind() == ValueKind::Plain && type_name(value) == "object"
    });
    environment.add_test("boolean", |value: &Value| value.kind() == ValueKind::Bool);
    environment.add_test("integer", |value: &Value| number::is_integer(value));
    environment.add_test("float", |value: &Value| type_name(value) == "float");
    // True is a number.
    environment.add_test("number", |value: &Value| Number::of(value).is_some());
    environment.add_test("escaped", |value: &Value| value.is_safe());
    let rest = |value: &Value, by: i64| {
        let rest = operators::rem(value, &Value::from(by))?;
        Ok::<_, Error>(operators::equal(&rest, &Value::from(1)))
    };
    environment.add_test("odd", move |value: &Value| rest(value, 2));
    environment.add_test("even", move |value: &Value| {
        let rest = operators::rem(value, &Value::from(2))?;
        Ok::<_, Error>(operators::equal(&rest, &Value::from(0)))
    });
    environment.add_test("divisibleby", |value: &Value, by: &Value| {
        let rest = operators::rem(value, by)?;
        Ok::<_, Error>(operators::equal(&rest, &Value::from(0)))
    });
}
