//! A pickle's instructions, of which a dict of tensors needs few. Nothing that one of them names is
//! called: a name is one of a short list, and stands for what it would make.
//!
//! Values are numbers into one table, so that whatever is nested how often is copied and dropped
//! in one step.

use std::collections::HashMap;

use safetensors::Dtype;

use super::{Description, MAX_TENSORS};
use vllm_batch_base::files::quoted;

/// Most values on the stack, in the table, in the memo.
const MAX_VALUES: usize = 1 << 21;

/// Most dimensions of a tensor.
const MAX_DIMS: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    None,
    Bool,
    Float,
    Int(i64),
    Text(&'a str),
    Global(Global),
    Mark,
    /// The place of what is larger in the table.
    Node(usize),
}

/// Names that a pickle may use.
#[derive(Clone, Copy, Debug)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Dtype),
}

#[derive(Debug)]
enum Node<'a> {
    Tuple(Vec<Value<'a>>),
    List,
    Dict(Vec<(Value<'a>, Value<'a>)>),
    Storage { dtype: Dtype, key: &'a str, len: u64 },
    Tensor(Description<'a>),
}

struct Machine<'a> {
    code: &'a [u8],
    at: usize,
    stack: Vec<Value<'a>>,
    nodes: Vec<Node<'a>>,
    /// Values in all nodes.
    num_held: usize,
    memo: HashMap<u32, Value<'a>>,
}

/// Tensors by name.
type Tensors<'a> = Vec<(&'a str, Description<'a>)>;

/// The tensors of a pickled dict.
pub(super) fn run(code: &[u8]) -> Result<Tensors<'_>, String> {
    let mut machine = Machine {
        code,
        at: 0,
        stack: Vec::new(),
        nodes: Vec::new(),
        num_held: 0,
        memo: HashMap::new(),
    };
    while machine.step().map_err(|text| format!("byte {} of its pickle: {text}", machine.at))? {}
    let top = machine.stack.pop();
    machine.tensors(top)
}

fn too_large() -> String {
    format!("more than {MAX_VALUES} values")
}

impl<'a> Machine<'a> {
    /// One instruction; false at the end.
    fn step(&mut self) -> Result<bool, String> {
        let code = self.byte()?;
        match code {
            0x80 => self.protocol()?,
            // FRAME: how many bytes follow in one piece.
            0x95 => drop(self.bytes(8)?),
            b'.' => return Ok(false),
            b'(' => self.push(Value::Mark)?,
            b'N' => self.push(Value::None)?,
            0x88 | 0x89 => self.push(Value::Bool)?,
            b'G' => {
                self.bytes(8)?;
                self.push(Value::Float)?;
            }
            b'K' | b'M' | b'J' | 0x8A => self.int(code)?,
            b'X' | 0x8C | b'c' | 0x93 => self.text_or_name(code)?,
            b'q' | b'r' | b'h' | b'j' | 0x94 => self.memo(code)?,
            b')' | b't' | 0x85..=0x87 => self.tuple(code)?,
            b']' => self.push_node(Node::List)?,
            b'}' => self.push_node(Node::Dict(Vec::new()))?,
            b's' | b'u' | b'a' | b'e' => self.fill(code)?,
            b'Q' => self.storage()?,
            b'R' => self.reduce()?,
            b'b' => self.build()?,
            code => return Err(format!("instruction {code:#04x}, which no dict of tensors needs")),
        }
        Ok(true)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.code.len());
        let end = end.ok_or("it is cut off")?;
        let bytes = &self.code[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.bytes(1)?[0])
    }

    fn number(&mut self, len: usize) -> Result<u64, String> {
        let bytes = self.bytes(len)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn protocol(&mut self) -> Result<(), String> {
        match self.byte()? {
            2..=5 => Ok(()),
            version => Err(format!("protocol {version}; torch.save writes 2 to 5")),
        }
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), String> {
        if self.stack.len() >= MAX_VALUES {
            return Err(too_large());
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_node(&mut self, node: Node<'a>) -> Result<(), String> {
        if self.nodes.len() >= MAX_VALUES {
            return Err(too_large());
        }
        self.nodes.push(node);
        self.push(Value::Node(self.nodes.len() - 1))
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        self.stack.pop().ok_or_else(|| "it takes a value where there is none".to_owned())
    }

    /// The values above the last mark.
    fn pop_to_mark(&mut self) -> Result<Vec<Value<'a>>, String> {
        let mark = self.stack.iter().rposition(|value| matches!(value, Value::Mark));
        let mark = mark.ok_or("it looks for a mark where there is none")?;
        let values = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(values)
    }

    /// Counts values that go into a node.
    fn hold(&mut self, num_values: usize) -> Result<(), String> {
        self.num_held += num_values;
        if self.num_held > MAX_VALUES { Err(too_large()) } else { Ok(()) }
    }

    fn int(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            b'K' => self.number(1)? as i64,
            b'M' => self.number(2)? as i64,
            b'J' => i64::from(self.number(4)? as u32 as i32),
            _ => {
                let len = usize::from(self.byte()?);
                let bits = if len <= 8 { self.number(len)? } else { return Err(too_wide()) };
                // The highest bit of what is there is the sign.
                let shift = 64 - 8 * len.max(1) as u32;
                if len == 0 { 0 } else { (bits << shift) as i64 >> shift }
            }
        };
        self.push(Value::Int(value))
    }

    fn text_or_name(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            b'X' | 0x8C => {
                let len = self.number(if code == b'X' { 4 } else { 1 })?;
                Value::Text(text(self.bytes(len as usize)?)?)
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                Value::Global(global(module, name)?)
            }
            _ => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => Value::Global(global(module, name)?),
                _ => return Err("it names something by values that are no text".to_owned()),
            },
        };
        self.push(value)
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.code[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n').ok_or("it is cut off")?;
        self.at += len + 1;
        text(&rest[..len])
    }

    fn memo(&mut self, code: u8) -> Result<(), String> {
        let place = match code {
            b'q' | b'h' => self.number(1)? as u32,
            b'r' | b'j' => self.number(4)? as u32,
            _ => self.memo.len() as u32,
        };
        if matches!(code, b'h' | b'j') {
            let value = self.memo.get(&place).copied();
            return self.push(value.ok_or("it recalls what it never kept")?);
        }
        let value = *self.stack.last().ok_or("it keeps a value where there is none")?;
        if self.memo.len() >= MAX_VALUES {
            return Err(too_large());
        }
        self.memo.insert(place, value);
        Ok(())
    }

    fn tuple(&mut self, code: u8) -> Result<(), String> {
        let values = match code {
            b')' => Vec::new(),
            b't' => self.pop_to_mark()?,
            _ => {
                let len = usize::from(code - 0x84);
                let start = self.stack.len().checked_sub(len);
                self.stack.split_off(start.ok_or("it takes values where there are none")?)
            }
        };
        self.hold(values.len())?;
        self.push_node(Node::Tuple(values))
    }

    /// Puts values into the dict or list below them. Nothing reads what is in a list.
    fn fill(&mut self, code: u8) -> Result<(), String> {
        let values = match code {
            b'u' | b'e' => self.pop_to_mark()?,
            b'a' => vec![self.pop()?],
            _ => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
        };
        self.hold(values.len())?;
        let target = match self.stack.last() {
            Some(Value::Node(node)) => &mut self.nodes[*node],
            _ => return Err("it fills what is no dict".to_owned()),
        };
        match (target, code) {
            (Node::List, b'a' | b'e') => Ok(()),
            (Node::Dict(items), b's' | b'u') if values.len().is_multiple_of(2) => {
                items.extend(values.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            _ => Err("it fills what is no dict".to_owned()),
        }
    }

    fn node(&self, value: Value<'a>) -> Option<&Node<'a>> {
        match value {
            Value::Node(node) => Some(&self.nodes[node]),
            _ => None,
        }
    }

    fn values(&self, value: Value<'a>) -> Result<&[Value<'a>], String> {
        match self.node(value) {
            Some(Node::Tuple(values)) => Ok(values),
            _ => Err("it has something else where a tuple belongs".to_owned()),
        }
    }

    /// `('storage', type, key, device, number of elements)`
    fn storage(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let node = match self.values(id)? {
            [
                Value::Text("storage"),
                Value::Global(Global::Storage(dtype)),
                Value::Text(key),
                _,
                Value::Int(len),
            ] => Node::Storage { dtype: *dtype, key, len: count(*len)? },
            _ => return Err("a storage that torch does not describe so".to_owned()),
        };
        self.push_node(node)
    }

    /// Value that a name would make of its arguments.
    fn reduce(&mut self) -> Result<(), String> {
        let arguments = self.pop()?;
        let Value::Global(callable) = self.pop()? else {
            return Err("it calls what is no name".to_owned());
        };
        let values = self.values(arguments)?;
        match (callable, values) {
            (Global::OrderedDict, []) => self.push_node(Node::Dict(Vec::new())),
            (Global::RebuildTensor, [storage, offset, shape, strides, ..]) => {
                let tensor = self.tensor(*storage, *offset, *shape, *strides)?;
                self.hold(tensor.shape.len() + tensor.strides.len())?;
                self.push_node(Node::Tensor(tensor))
            }
            (Global::RebuildParameter, [tensor, ..]) => {
                let tensor = *tensor;
                self.push(tensor)
            }
            _ => Err("it calls a name with arguments that torch does not give it".to_owned()),
        }
    }

    fn tensor(
        &self,
        storage: Value<'a>,
        offset: Value<'a>,
        shape: Value<'a>,
        strides: Value<'a>,
    ) -> Result<Description<'a>, String> {
        let (Some(Node::Storage { dtype, key, len }), Value::Int(offset)) =
            (self.node(storage), offset)
        else {
            return Err("a tensor that torch does not describe so".to_owned());
        };
        Ok(Description {
            dtype: *dtype,
            storage: key,
            storage_len: *len,
            offset: count(offset)?,
            shape: self.counts(shape)?,
            strides: self.counts(strides)?,
        })
    }

    fn counts(&self, tuple: Value<'a>) -> Result<Vec<u64>, String> {
        let values = self.values(tuple)?;
        if values.len() > MAX_DIMS {
            return Err(format!("a tensor of more than {MAX_DIMS} dimensions"));
        }
        let number = |value: &Value<'a>| match value {
            Value::Int(number) => count(*number),
            _ => Err("a size that is no number".to_owned()),
        };
        values.iter().map(number).collect()
    }

    /// State of an OrderedDict: versions of modules, which nothing here reads.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.stack.last().and_then(|value| self.node(*value)) {
            Some(Node::Dict(_)) => Ok(()),
            _ => Err("it sets the state of what is no dict".to_owned()),
        }
    }

    /// The result: a dict from names to tensors and nothing else.
    fn tensors(mut self, top: Option<Value<'a>>) -> Result<Tensors<'a>, String> {
        let Some(Value::Node(top)) = top else { return Err(not_a_dict()) };
        let Node::Dict(items) = std::mem::replace(&mut self.nodes[top], Node::List) else {
            return Err(not_a_dict());
        };
        if items.len() > MAX_TENSORS {
            return Err(format!("more than {MAX_TENSORS} tensors"));
        }
        let mut tensors = Vec::with_capacity(items.len());
        for (name, value) in items {
            let Value::Text(name) = name else { return Err(not_a_dict()) };
            match self.node(value) {
                Some(Node::Tensor(tensor)) => tensors.push((name, tensor.clone())),
                _ => return Err(format!("{} in it is no tensor: {HELP}", quoted(name))),
            }
        }
        Ok(tensors)
    }
}

const HELP: &str = "only a dict of tensors is read, as model.state_dict() gives it";

fn not_a_dict() -> String {
    format!("it holds no dict of tensors: {HELP}")
}

fn too_wide() -> String {
    "a number of more than 64 bits".to_owned()
}

fn count(number: i64) -> Result<u64, String> {
    u64::try_from(number).map_err(|_| format!("a size of {number}"))
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| "a text that is not UTF-8".to_owned())
}

fn global(module: &str, name: &str) -> Result<Global, String> {
    Ok(match (module, name) {
        ("collections", "OrderedDict") => Global::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
        ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
        ("torch", "FloatStorage") => Global::Storage(Dtype::F32),
        ("torch", "HalfStorage") => Global::Storage(Dtype::F16),
        ("torch", "BFloat16Storage") => Global::Storage(Dtype::BF16),
        ("torch", "DoubleStorage") => Global::Storage(Dtype::F64),
        ("torch", "LongStorage") => Global::Storage(Dtype::I64),
        ("torch", "IntStorage") => Global::Storage(Dtype::I32),
        ("torch", "ShortStorage") => Global::Storage(Dtype::I16),
        ("torch", "CharStorage") => Global::Storage(Dtype::I8),
        ("torch", "ByteStorage") => Global::Storage(Dtype::U8),
        ("torch", "BoolStorage") => Global::Storage(Dtype::BOOL),
        _ => {
            let name = quoted(&format!("{module}.{name}"));
            return Err(format!(
                "it names {name}, which is no part of a tensor; it could be code, and is refused"
            ));
        }
    })
}
