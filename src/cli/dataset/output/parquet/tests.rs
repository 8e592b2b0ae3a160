//! Rows to files and back by the reader of inputs: every type, every nesting, and damage.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use parquet::schema::parser::parse_message_type;

use super::*;
use crate::input::parquet::{ParquetFile, ParquetRows, is_parquet};
use crate::input::reader::Content;
use crate::input::shard::Shard;

const TYPES: &str = "message schema {
    OPTIONAL BOOLEAN truth;
    OPTIONAL INT32 i8 (INTEGER(8,true));
    OPTIONAL INT32 u32 (INTEGER(32,false));
    OPTIONAL INT64 i64;
    OPTIONAL INT64 u64 (INTEGER(64,false));
    OPTIONAL INT96 int96;
    OPTIONAL FLOAT float;
    OPTIONAL DOUBLE double;
    OPTIONAL FIXED_LEN_BYTE_ARRAY (2) half (FLOAT16);
    OPTIONAL INT32 d9 (DECIMAL(9,2));
    OPTIONAL INT64 d18 (DECIMAL(18,6));
    OPTIONAL FIXED_LEN_BYTE_ARRAY (16) d38 (DECIMAL(38,10));
    OPTIONAL BYTE_ARRAY d20 (DECIMAL(20,3));
    OPTIONAL INT32 date (DATE);
    OPTIONAL INT64 utc (TIMESTAMP(MICROS,true));
    OPTIONAL INT64 local (TIMESTAMP(NANOS,false));
    OPTIONAL INT32 millis (TIME(MILLIS,false));
    OPTIONAL FIXED_LEN_BYTE_ARRAY (16) uuid (UUID);
    OPTIONAL FIXED_LEN_BYTE_ARRAY (12) span (INTERVAL);
    OPTIONAL BYTE_ARRAY text (STRING);
    OPTIONAL BYTE_ARRAY json (JSON);
    OPTIONAL BYTE_ARRAY bytes;
    OPTIONAL group messages (LIST) { REPEATED group list { OPTIONAL group element {
        OPTIONAL BYTE_ARRAY role (STRING);
        OPTIONAL BYTE_ARRAY content (STRING);
    } } }
    OPTIONAL group nested (LIST) { REPEATED group list { OPTIONAL group element (LIST) {
        REPEATED group list { OPTIONAL INT32 element; }
    } } }
    OPTIONAL group counts (MAP) { REPEATED group key_value {
        REQUIRED BYTE_ARRAY key (STRING);
        OPTIONAL INT64 value;
    } }
    OPTIONAL group by_id (MAP) { REPEATED group key_value {
        REQUIRED INT32 key;
        OPTIONAL group value { REQUIRED INT32 a; OPTIONAL BYTE_ARRAY b (STRING); }
    } }
    REPEATED INT32 bare;
}";

const FULL: &str = concat!(
    r#"{"truth":true,"i8":-128,"u32":4294967295,"i64":-9223372036854775808,"#,
    r#""u64":18446744073709551615,"int96":"1815-12-10T01:02:03.000000004","float":0.1,"#,
    r#""double":1e+300,"half":-0.5,"d9":"-0.01","d18":"123456789012.345678","#,
    r#""d38":"-9999999999999999999999999999.9999999999","d20":"12345678901234567.890","#,
    r#""date":"1969-12-31","utc":"2024-02-29T12:00:00.5Z","local":"2262-04-11T23:47:16.854775807","#,
    r#""millis":"23:59:59.999","uuid":"00112233-4455-6677-8899-aabbccddeeff","#,
    r#""span":"P1M2DT3.004S","text":"é\n\u0000","json":{"b": [1, 1e400],"a":"x"},"bytes":"/w==","#,
    r#""messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null}],"#,
    r#""nested":[[1,null],[],null,[2]],"counts":{"x":1,"y":null},"#,
    r#""by_id":{"1":{"a":2,"b":"c"},"-3":null},"bare":[1,2]}"#
);

const EMPTY: &str = concat!(
    r#"{"truth":false,"i8":0,"u32":0,"i64":9007199254740993,"u64":0,"int96":null,"float":"NaN","#,
    r#""double":"-Infinity","half":"Infinity","d9":"0.00","d18":"0.000000","#,
    r#""d38":"0.0000000000","d20":"0.000","date":"+10000-01-01","utc":"-0001-12-31T00:00:00Z","#,
    r#""local":"1970-01-01T00:00:00","millis":"00:00:00","uuid":null,"span":null,"text":"","#,
    r#""json":"text","bytes":"","messages":[],"nested":[],"counts":{},"by_id":{},"bare":[]}"#
);

fn spec(message: &str) -> TableSpec {
    let root = parse_message_type(message).expect("a message");
    TableSpec { of_input: root.get_fields().to_vec(), ..TableSpec::default() }
}

fn null_row() -> String {
    let value = |name: &str| match name {
        "bare" => "\"bare\":[]".to_owned(),
        name => format!("{name:?}:null"),
    };
    let columns = spec(TYPES).of_input;
    let values: Vec<_> = columns.iter().map(|column| value(column.name())).collect();
    format!("{{{}}}", values.join(","))
}

fn written(spec: &TableSpec, rows: &[&str]) -> Vec<u8> {
    let mut table = Table::new(Arc::new(spec.clone()), Shard::default());
    rows.iter().for_each(|row| table.look_at(row.as_bytes()));
    let mut writer = table.writer().expect("types that exist");
    let mut bytes = Vec::new();
    for row in rows {
        writer.add(row.as_bytes()).expect("values of their types");
        bytes.extend(writer.take());
    }
    bytes.extend(writer.finish().expect("written"));
    bytes
}

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("room for it");
    file
}

fn read(bytes: &[u8]) -> Result<Vec<String>, String> {
    let file = ParquetFile::open(file_of(bytes)).map_err(|error| error.to_string())?;
    let mut rows = ParquetRows::new(file);
    let mut lines = Vec::new();
    while let Some(record) = rows.next_row().map_err(|error| error.to_string())? {
        let Content::Line(line) = record.content else { panic!("rows are lines") };
        match record.error {
            None => lines.push(line),
            Some(error) => lines.push(format!("{}: {}", error.code, error.message)),
        }
    }
    Ok(lines)
}

#[test]
fn every_type_comes_back_as_it_was() {
    let null = null_row();
    let mut rows = vec![FULL, EMPTY, &null, FULL, EMPTY];
    let bytes = written(&spec(TYPES), &rows);
    assert!(is_parquet(&file_of(&bytes)).unwrap());
    assert_eq!(read(&bytes).unwrap(), rows);
    // A group, a half and a row: groups and batches end where they may.
    rows = rows.repeat(8192 / 5 + 1);
    let bytes = written(&spec(TYPES), &rows);
    let file = ParquetFile::open(file_of(&bytes)).unwrap();
    assert_eq!(file.num_rows(), rows.len() as u64);
    assert_eq!(read(&bytes).unwrap(), rows);
    assert_eq!(bytes, written(&spec(TYPES), &rows), "the same bytes again");
}

#[test]
fn fields_without_a_schema_get_one_of_their_values() {
    let rows = [
        r#"{"id":1,"mixed":1,"float":1,"truth":true,"list":[1,"a"]}"#,
        r#"{"id":9007199254740993,"mixed":"\u00e9","float":0.5,"late":"x","list":null}"#,
        r#"{"mixed":3.0,"truth":null}"#,
    ];
    let spec = TableSpec {
        ours: ours(Some("response"), &["prompt_tokens"]),
        vector: None,
        of_input: Vec::new(),
    };
    let bytes = written(&spec, &rows);
    let end = r#""response":null,"finish_reason":null,"usage":null,"error":null}"#;
    let wanted = [
        r#"{"id":1,"mixed":1,"float":1.0,"truth":true,"list":[1,"a"],"late":null,"#,
        r#"{"id":9007199254740993,"mixed":"é","float":0.5,"truth":null,"list":null,"late":"x","#,
        r#"{"id":null,"mixed":3,"float":null,"truth":null,"list":null,"late":null,"#,
    ];
    assert_eq!(read(&bytes).unwrap(), wanted.map(|row| row.to_owned() + end));
}

#[test]
fn shards_become_the_file_of_one_run() {
    let rows: Vec<String> = (0..40u32)
        .map(|row| match row % 5 {
            0 => format!(r#"{{"n":{row},"t":"a{row}","v":[{row},0.25]}}"#),
            1 => format!(r#"{{"n":{row}.5,"t":{row}.0,"late":{row}}}"#),
            2 => r#"{"t":"\u00e9","n":null,"error":{"code":"c","message":"m"}}"#.to_owned(),
            3 => r#"{"only":{"a":1.0},"n":9007199254740993}"#.to_owned(),
            _ => r#"{"v":null,"t":true}"#.to_owned(),
        })
        .collect();
    let spec = TableSpec {
        ours: ours(None, &["prompt_tokens"]),
        vector: Some("v".to_owned()),
        ..TableSpec::default()
    };
    let one = written(&spec, &rows.iter().map(String::as_str).collect::<Vec<_>>());
    for count in [1u64, 2, 5] {
        let mut evidence = Evidence::default();
        let mut lines = Vec::new();
        let mut found = None;
        for index in 0..count {
            let shard = Shard { index, count };
            let own = rows.iter().enumerate().filter(|(row, _)| shard.owns(*row as u64));
            let mut table = Table::new(Arc::new(spec.clone()), shard);
            own.clone().for_each(|(_, row)| table.look_at(row.as_bytes()));
            let mut writer = table.writer().unwrap();
            own.for_each(|(_, row)| writer.add(row.as_bytes()).unwrap());
            let bytes = writer.finish().unwrap();
            let file = ParquetFile::open(file_of(&bytes)).unwrap();
            let (spec, inferences) = TableSpec::of_file(&file).unwrap();
            evidence.merge(inferences.columns);
            lines.push(read(&bytes).unwrap().into_iter());
            found = Some(spec);
        }
        let table = Table::of_shards(found.unwrap(), evidence);
        let mut writer = table.writer().unwrap();
        for row in 0..rows.len() {
            let line = lines[row % count as usize].next().unwrap();
            writer.add(line.as_bytes()).unwrap();
        }
        assert!(writer.finish().unwrap() == one, "{count} shards");
    }
}

#[test]
fn a_value_of_another_type_is_refused_but_for_what_an_error_row_shows() {
    let spec = spec("message m { OPTIONAL INT32 input; OPTIONAL INT32 line; }");
    let table = Table::new(Arc::new(spec.clone()), Shard::default());
    let mut writer = table.writer().unwrap();
    let error = writer.add(br#"{"input":"text","line":1}"#).unwrap_err();
    assert!(error.to_string().starts_with("column input: "), "{error}");
    let row = r#"{"line":7,"input":"text","error":{"code":"line_too_long","message":"m"}}"#;
    let rows = read(&written(&spec, &[row])).unwrap();
    assert!(rows[0].starts_with(r#"{"input":null,"line":7,"error":{"#), "{rows:?}");
}

#[test]
fn no_damage_is_a_panic_and_none_is_read_without_end() {
    let null = null_row();
    let bytes = written(&spec(TYPES), &[FULL, EMPTY, &null]);
    // Most bytes are of statistics and names: all of the first pages, and some of the rest.
    for at in (0..bytes.len()).filter(|at| *at < 1500 || at % 5 == 0) {
        for value in [0xff, bytes[at] ^ 1] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if let Ok(rows) = read(&damaged) {
                assert!(rows.len() < 1 << 20, "byte {at}");
            }
        }
    }
    for end in (0..bytes.len()).step_by(3) {
        assert!(read(&bytes[..end]).is_err(), "cut at {end}");
    }
}
