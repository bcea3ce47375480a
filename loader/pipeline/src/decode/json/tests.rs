use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use base64::Engine as _;
use proptest::prelude::*;

use super::*;
use crate::schema::Column;

/// `!` behind a name makes the column required.
fn schema(columns: &[(&str, &str)]) -> TableSchema {
    let columns = columns.iter().map(|(name, column_type)| {
        let column = Column::new(name.trim_end_matches('!'), column_type.parse().unwrap());
        if name.ends_with('!') { column.required() } else { column }
    });
    TableSchema { columns: columns.collect(), ..TableSchema::default() }
}

fn reason(schema: &TableSchema, value: &[u8]) -> String {
    let mut decoder = JsonDecoder::new(schema);
    let reject = decoder.decode(value).expect_err(&String::from_utf8_lossy(value));
    assert_eq!(decoder.rows(), 0);
    reject.reason
}

fn one(column_type: &str, json: &str) -> Cell {
    let schema = schema(&[("v", column_type)]);
    let mut decoder = JsonDecoder::new(&schema);
    decoder.decode(format!("{{\"v\":{json}}}").as_bytes()).unwrap();
    cell(&decoder.finish().unwrap()[0], 0)
}

/// One value of an array, comparable.
#[derive(Debug, Clone, PartialEq)]
enum Cell {
    Null,
    Bool(bool),
    Int(i128),
    Float(u64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Cell>),
    Struct(BTreeMap<String, Cell>),
}

fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

fn cell(array: &ArrayRef, row: usize) -> Cell {
    if array.is_null(row) {
        return Cell::Null;
    }
    match array.data_type() {
        DataType::Boolean => Cell::Bool(array.as_boolean().value(row)),
        DataType::Int32 => Cell::Int(array.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => Cell::Int(array.as_primitive::<Int64Type>().value(row).into()),
        DataType::Date32 => Cell::Int(array.as_primitive::<Date32Type>().value(row).into()),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            Cell::Int(array.as_primitive::<TimestampMillisecondType>().value(row).into())
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            Cell::Int(array.as_primitive::<TimestampMicrosecondType>().value(row).into())
        }
        DataType::Decimal128(_, _) => Cell::Int(array.as_primitive::<Decimal128Type>().value(row)),
        DataType::Float64 => Cell::Float(array.as_primitive::<Float64Type>().value(row).to_bits()),
        DataType::Utf8 => text(array.as_string::<i32>().value(row)),
        DataType::Binary => Cell::Bytes(array.as_binary::<i32>().value(row).to_vec()),
        DataType::List(_) => {
            let elements = array.as_list::<i32>().value(row);
            Cell::List((0..elements.len()).map(|at| cell(&elements, at)).collect())
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let named = fields.iter().zip(columns);
            Cell::Struct(named.map(|(f, column)| (f.name().clone(), cell(column, row))).collect())
        }
        other => panic!("no cell for {other}"),
    }
}

#[test]
fn bad_records_are_refused_with_their_reason() {
    let schema = schema(&[("id!", "int64"), ("n", "int32"), ("s", "string"), ("x", "float64")]);
    for (value, expected) in [
        (&b""[..], "the value is empty (0 bytes)"),
        (b" \n", "the value is blank"),
        (b"[1]", "not a JSON object but `[1]`"),
        (b"null", "not a JSON object but `null`"),
        (b"\"x\"", "not a JSON object but `\"x\"`"),
        (b"hello", "not a JSON object but `hello`"),
        (b"{\"id\":1}{\"id\":2}", "something follows the JSON object at byte 8: `{\"id\":2}`"),
        (b"{\"id\":1}\n{\"id\":2}", "something follows the JSON object at byte 9: `{\"id\":2}`"),
        (b"{\"id\":1} x", "something follows the JSON object at byte 9: `x`"),
        (b"{\"id\":1", "the JSON ends early, at byte 7"),
        (b"{\"id\":1,", "the JSON ends early, at byte 8"),
        (b"{\"id\"", "the JSON ends early, at byte 5"),
        (b"{\"id\":1,\"s\":\"abc", "the JSON ends early, at byte 16"),
        (b"{\"id\":1,\"s\":nul", "the JSON ends early, at byte 15"),
        (b"{\"id\":1,}", "malformed JSON at byte 8: expected a key in quotes, found `}`"),
        (b"{id:1}", "malformed JSON at byte 1: expected a key in quotes, found `id:1}`"),
        (b"{\"id\":1 \"n\":2}", "malformed JSON at byte 8: expected `,` or `}`, found `\"n\"`"),
        (b"{\"id\":01}", "malformed JSON at byte 7: expected `,` or `}`, found `1`"),
        (b"{\"id\":1,\"s\":\"a\x01\"}", "malformed JSON at byte 14: expected no control character in a string, found `\u{1}\"}`"),
        (b"{\"id\":1,\"s\":\"\\q\"}", "malformed JSON at byte 13: expected a known escape, found `\\q\"}`"),
        (b"{\"id\":1,\"s\":\"\xff\"}", "not UTF-8 at byte 13"),
        (b"{\"id\":1.5}", "column `id` is not an int64 but `1.5`"),
        (b"{\"id\":1.0}", "column `id` is not an int64 but `1.0`"),
        (b"{\"id\":1e3}", "column `id` is not an int64 but `1e3`"),
        (b"{\"id\":\"5\"}", "column `id` is not an int64 but `\"5\"`"),
        (b"{\"id\":9223372036854775808}", "column `id` is out of range for an int64: `9223372036854775808`"),
        (b"{\"id\":1,\"n\":2147483648}", "column `n` is out of range for an int32: `2147483648`"),
        (b"{\"id\":null}", "column `id` is required but null"),
        (b"{\"n\":1}", "column `id` is required but its field is missing"),
        (b"{\"id\":1,\"s\":5}", "column `s` is not a string but `5`"),
        (b"{\"id\":1,\"x\":NaN}", "malformed JSON at byte 12: expected a value, found `NaN}`"),
        (b"{\"id\":1,\"x\":1e999}", "column `x` is out of range for a float64: `1e999`"),
        (b"{\"id\":1,\"x\":\"1\"}", "column `x` is not a float64 but `\"1\"`"),
        (b"{\"id\":1,\"id\":1}", "key `\"id\"` appears twice"),
        (b"{\"id\":1,\"i\\u0064\":1}", "key `\"i\\u0064\"` appears twice"),
    ] {
        assert_eq!(reason(&schema, value), expected, "{}", String::from_utf8_lossy(value));
    }
}

#[test]
fn long_values_are_shortened_in_reasons() {
    let value = format!("{{\"id\":\"{}\"}}", "ä".repeat(10_000));
    let reason = reason(&schema(&[("id", "int64")]), value.as_bytes());
    assert!(reason.ends_with("ä…`") && reason.len() < 200, "{reason}");
}

#[test]
fn values_of_every_type_are_exact() {
    assert_eq!(one("int64", "-9223372036854775808"), Cell::Int(i64::MIN.into()));
    assert_eq!(one("int64", "9007199254740993"), Cell::Int(9_007_199_254_740_993));
    assert_eq!(one("float64", "5"), Cell::Float(5.0_f64.to_bits()));
    assert_eq!(one("float64", "-1.5e-3"), Cell::Float((-0.0015_f64).to_bits()));
    assert_eq!(one("boolean", "false"), Cell::Bool(false));
    assert_eq!(one("string", r#""a\"\u00e4\ud83d\ude00\n""#), text("a\"ä\u{1F600}\n"));
    assert_eq!(one("binary", r#""AP8\/""#), Cell::Bytes(vec![0, 0xFF, 0x3F]));
    assert_eq!(one("date", "\"1969-12-31\""), Cell::Int(-1));
    assert_eq!(one("timestamp_ms", "1796036709250"), Cell::Int(1_796_036_709_250));
    assert_eq!(
        one("timestamp_ms", "\"2026-11-30T13:05:09.250+02:00\""),
        Cell::Int(1_796_036_709_250)
    );
    assert_eq!(
        one("timestamp_us", "\"1969-12-31T23:59:59.999999Z\""),
        Cell::Int(-1)
    );
    assert_eq!(one("decimal(38,10)", "\"-0.0000000001\""), Cell::Int(-1));
    assert_eq!(one("decimal(38,10)", "12345678901234567890.5"), Cell::Int(123_456_789_012_345_678_905_000_000_000));
    assert_eq!(one("json", r#"{"a" : [1, 2.50]}"#), text(r#"{"a" : [1, 2.50]}"#));
    assert_eq!(one("json", "null"), Cell::Null);
    assert_eq!(
        one("list<int64>", "[1, null , 3]"),
        Cell::List(vec![Cell::Int(1), Cell::Null, Cell::Int(3)])
    );
    assert_eq!(one("list<int64>", "[ ]"), Cell::List(Vec::new()));
    let inner = [("a".to_owned(), Cell::Int(1)), ("b".to_owned(), Cell::Null)];
    assert_eq!(one("struct<a: int64, b: string>", r#"{"c":{},"a":1}"#), Cell::Struct(inner.into()));
}

#[test]
fn values_that_would_lose_something_are_refused() {
    for (column_type, json, expected) in [
        ("timestamp_ms", "\"2026-11-30T13:05:09.2505Z\"", "column `v` has more digits than a timestamp_ms (timestamp_us keeps microseconds): `\"2026-11-30T13:05:09.2505Z\"`"),
        ("timestamp_ms", "1.5", "column `v` is not a timestamp (integer milliseconds or RFC 3339 text) but `1.5`"),
        ("timestamp_ms", "\"2026-11-30 13:05:09\"", "column `v` is not a timestamp (integer milliseconds or RFC 3339 text) but `\"2026-11-30 13:05:09\"`"),
        ("date", "\"2026-02-30\"", "column `v` is not a date such as \"2026-11-30\" but `\"2026-02-30\"`"),
        ("decimal(5,1)", "1.25", "column `v` has more digits than the decimal's scale: `1.25`"),
        ("decimal(5,1)", "12345.6", "column `v` is out of range for the decimal's digits: `12345.6`"),
        ("decimal(5,1)", "\"x\"", "column `v` is not a decimal but `\"x\"`"),
        ("decimal(5,1)", "true", "column `v` is not a decimal but `true`"),
        ("binary", "\"AP8\"", "column `v` is not base64 text but `\"AP8\"`"),
        ("list<int64 not null>", "[1,null]", "column `v[]` is required but null"),
        ("list<struct<a: int32>>", "[{},{\"a\":\"b\"}]", "column `v[].a` is not an int32 but `\"b\"`"),
        ("struct<a: struct<b: int64 not null>>", "{\"a\":{}}", "column `v.a.b` is required but its field is missing"),
        ("struct<a: int64>", "{\"a\":1,\"a\":2}", "column `v` key `\"a\"` appears twice"),
        ("struct<a: int64>", "[]", "column `v` is not an object but `[]`"),
        ("list<int64>", "{}", "column `v` is not an array but `{}`"),
    ] {
        let value = format!("{{\"v\":{json}}}");
        assert_eq!(reason(&schema(&[("v", column_type)]), value.as_bytes()), expected, "{json}");
    }
}

#[test]
fn keys_are_found_in_any_order_and_spelling() {
    let mut schema = schema(&[("a", "int64"), ("b", "int64"), ("c", "int64")]);
    schema.columns[2].field = Some("q\"\\".to_owned());
    let mut decoder = JsonDecoder::new(&schema);
    for value in [
        r#"{"a":1,"b":2,"q\"\\":3}"#,
        r#"{"q\"\\":3,"b":2,"a":1}"#,
        r#"{"q\"\\":3,"b":2,"a":1}"#,
        r#" { "b" : 2 , "\u0061" : 1 , "\u0071\"\\" : 3 } "#,
    ] {
        assert_eq!(decoder.decode(value.as_bytes()).unwrap(), 0, "{value}");
    }
    for (column, expected) in decoder.finish().unwrap().iter().zip([1, 2, 3]) {
        for row in 0..4 {
            assert_eq!(cell(column, row), Cell::Int(expected));
        }
    }
}

#[test]
fn unknown_fields_are_counted_and_kept_verbatim() {
    let mut schema = schema(&[("a", "int64"), ("s", "struct<x: int64>")]);
    let value = br#"{"z":[1, {"y":null}],"a":1,"s":{"x":1,"w":2},"\u00e9":"\u00e9"}"#;
    let mut decoder = JsonDecoder::new(&schema);
    assert_eq!(decoder.decode(value).unwrap(), 3);
    schema.rest_column = Some("rest".to_owned());
    let mut decoder = JsonDecoder::new(&schema);
    assert_eq!(decoder.decode(value).unwrap(), 3);
    assert_eq!(decoder.decode(br#"{"a":2}"#).unwrap(), 0);
    let rest = &decoder.finish().unwrap()[2];
    assert_eq!(cell(rest, 0), text(r#"{"z":[1, {"y":null}],"\u00e9":"\u00e9"}"#));
    assert_eq!(cell(rest, 1), Cell::Null);
    assert_eq!(reason(&schema, br#"{"z":1,"z":2}"#), "key `\"z\"` appears twice");
    let many: Vec<String> = (0..40).map(|n| format!("\"k{n}\":1")).collect();
    let twice = format!("{{{},\"k39\":1}}", many.join(","));
    assert_eq!(reason(&schema, twice.as_bytes()), "key `\"k39\"` appears twice");
}

#[test]
fn nesting_is_limited_where_it_is_read_and_where_it_is_skipped() {
    let nested = |levels: usize| {
        format!("{{\"v\":{}{}}}", "[".repeat(levels), "]".repeat(levels)).into_bytes()
    };
    for columns in [&[][..], &[("v", "json")]] {
        let schema = schema(columns);
        JsonDecoder::new(&schema).decode(&nested(MAX_DEPTH - 1)).unwrap();
        assert!(reason(&schema, &nested(MAX_DEPTH)).starts_with("nested more than 128 deep"));
        assert!(reason(&schema, &nested(1_000_000)).starts_with("nested more than 128 deep"));
    }
}

#[test]
fn small_records_cannot_grow_without_bound() {
    let fields: Vec<String> = (0..100).map(|n| format!("f{n}: int64")).collect();
    let wide = schema(&[("v", &format!("list<struct<{}>>", fields.join(",")))]);
    let value = format!("{{\"v\":[{}{{}}]}}", "{},".repeat(300_000));
    let mut decoder = JsonDecoder::new(&wide);
    let reject = decoder.decode(value.as_bytes()).unwrap_err();
    assert!(reject.reason.contains("would grow beyond"), "{}", reject.reason);
    assert_eq!(decoder.rows(), 0);
    assert!(decoder.bytes() < 10_000, "{}", decoder.bytes());
}

#[test]
fn a_rejected_record_leaves_no_trace_whatever_was_written_of_it() {
    let schema = every_type();
    let good = r#"{"b":7,"a":1,"c":1.5,"d":"x","e":true,"f":1.25,"g":5,"h":"2026-11-30","i":[1,2],"j":{"x":1,"y":["p"]},"k":[1],"l":"AAA=","new":1}"#;
    // Every prefix is a bad record that stops somewhere else.
    let bad: Vec<&str> = (0..good.len()).map(|end| &good[..end]).collect();
    let mut decoder = JsonDecoder::new(&schema);
    for prefix in &bad {
        decoder.decode(good.as_bytes()).unwrap();
        decoder.decode(prefix.as_bytes()).unwrap_err();
    }
    let with_bad = decoder.finish().unwrap();
    for _ in &bad {
        decoder.decode(good.as_bytes()).unwrap();
    }
    let without = decoder.finish().unwrap();
    for (one, two) in with_bad.iter().zip(&without) {
        assert_eq!(one.to_data(), two.to_data());
    }
}

#[test]
fn a_row_of_nulls_stands_between_others() {
    let mut decoder = JsonDecoder::new(&schema(&[("a", "int64"), ("s", "struct<x: int64 not null>")]));
    decoder.decode(br#"{"a":1,"s":{"x":1}}"#).unwrap();
    decoder.push_nulls();
    decoder.decode(br#"{"a":3}"#).unwrap();
    let columns = decoder.finish().unwrap();
    assert_eq!(cell(&columns[0], 1), Cell::Null);
    assert_eq!(cell(&columns[1], 1), Cell::Null);
    assert_eq!(cell(&columns[0], 2), Cell::Int(3));
}

// Random documents against an oracle that knows nothing of the decoder.

fn every_type() -> TableSchema {
    let mut schema = schema(&[
        ("a", "int64"),
        ("b!", "int32"),
        ("c", "float64"),
        ("d", "string"),
        ("e", "boolean"),
        ("f", "decimal(10,2)"),
        ("g", "timestamp_ms"),
        ("h", "date"),
        ("i", "list<int64>"),
        ("j", "struct<x: int64 not null, y: list<string not null>>"),
        ("k", "json"),
        ("l", "binary"),
    ]);
    schema.rest_column = Some("rest".to_owned());
    schema
}

#[derive(Debug, Clone)]
enum Doc {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    Array(Vec<Doc>),
    Object(Vec<(String, Doc)>),
}

/// Renders with spaces and escapes that `style` picks.
fn render(doc: &Doc, style: &mut u64) -> String {
    *style = style.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    let space = ["", "", " ", "\n\t"][usize::try_from(*style >> 62).unwrap()];
    match doc {
        Doc::Null => "null".to_owned(),
        Doc::Bool(value) => value.to_string(),
        Doc::Number(text) => text.clone(),
        Doc::Text(text) => render_text(text, style),
        Doc::Array(elements) => {
            let elements: Vec<_> = elements.iter().map(|e| render(e, style)).collect();
            format!("[{space}{}{space}]", elements.join(&format!("{space},")))
        }
        Doc::Object(members) => {
            let members: Vec<_> = members
                .iter()
                .map(|(key, value)| {
                    let key = render_text(key, style);
                    format!("{key}{space}:{space}{}", render(value, style))
                })
                .collect();
            format!("{{{space}{}{space}}}", members.join(&format!("{space},{space}")))
        }
    }
}

fn render_text(text: &str, style: &mut u64) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        *style = style.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if *style >> 60 == 0 || matches!(letter, '"' | '\\' | '\0'..='\x1f') {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(letter);
        }
    }
    out + "\""
}

fn any_number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (-1000_i32..1000).prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(|f| format!("{f:e}")),
        (-99_999_i64..99_999, 0_u32..1000).prop_map(|(whole, part)| format!("{whole}.{part}")),
        (-999_i32..999, -5_i32..12).prop_map(|(m, e)| format!("{m}E{e:+}")),
    ]
}

fn any_doc() -> impl Strategy<Value = Doc> {
    let leaf = prop_oneof![
        Just(Doc::Null),
        any::<bool>().prop_map(Doc::Bool),
        any_number().prop_map(Doc::Number),
        ".{0,12}".prop_map(Doc::Text),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Doc::Array),
            prop::collection::btree_map("[a-z]{1,2}", inner, 0..4)
                .prop_map(|members| Doc::Object(members.into_iter().collect())),
        ]
    })
}

fn fitting(name: &str) -> BoxedStrategy<Doc> {
    let integers = any::<i64>().prop_map(|n| Doc::Number(n.to_string()));
    match name {
        "a" => integers.boxed(),
        "b" => any::<i32>().prop_map(|n| Doc::Number(n.to_string())).boxed(),
        "c" => any_number().prop_map(Doc::Number).boxed(),
        "d" => ".{0,40}".prop_map(Doc::Text).boxed(),
        "e" => any::<bool>().prop_map(Doc::Bool).boxed(),
        "f" => (any::<bool>(), -99_999_i64..99_999, 0_u32..100)
            .prop_map(|(quoted, whole, cents)| {
                let text = format!("{whole}.{cents:02}");
                if quoted { Doc::Text(text) } else { Doc::Number(text) }
            })
            .boxed(),
        "g" => prop_oneof![
            integers,
            (-62_000_000_000_000_i64..250_000_000_000_000).prop_map(|ms| {
                Doc::Text(jiff::Timestamp::from_millisecond(ms).unwrap().to_string())
            })
        ]
        .boxed(),
        "h" => (1_i16..9999, 1_i8..13, 1_i8..32)
            .prop_map(|(y, m, d)| Doc::Text(format!("{y:04}-{m:02}-{d:02}")))
            .boxed(),
        "i" => prop::collection::vec(integers, 0..4).prop_map(Doc::Array).boxed(),
        "j" => (any::<i64>(), prop::collection::vec(".{0,5}".prop_map(Doc::Text), 0..3))
            .prop_map(|(x, y)| {
                let x = Doc::Number(x.to_string());
                Doc::Object(vec![("y".to_owned(), Doc::Array(y)), ("x".to_owned(), x)])
            })
            .boxed(),
        "l" => prop::collection::vec(any::<u8>(), 0..9)
            .prop_map(|bytes| Doc::Text(base64::engine::general_purpose::STANDARD.encode(bytes)))
            .boxed(),
        _ => any_doc().boxed(),
    }
}

fn any_record() -> impl Strategy<Value = Vec<(String, Doc)>> {
    let member = |name: &'static str| {
        let optional = if name == "b" { 1 } else { 8 };
        prop_oneof![
            optional => Just(None),
            optional => Just(Some(Doc::Null)),
            60 => fitting(name).prop_map(Some),
            2 => any_doc().prop_map(Some),
        ]
        .prop_map(move |doc| doc.map(|doc| (name.to_owned(), doc)))
    };
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "unknown", "\u{e9}"];
    let members: Vec<_> = names.into_iter().map(member).collect();
    members.prop_map(|members| members.into_iter().flatten().collect::<Vec<_>>()).prop_shuffle()
}

/// What the column must hold for the document, None if the record must be refused.
fn expected(column_type: &ColumnType, nullable: bool, doc: &Doc, raw: &str) -> Option<Cell> {
    if matches!(doc, Doc::Null) {
        return nullable.then_some(Cell::Null);
    }
    let whole = |text: &str| text.parse::<i64>().ok().filter(|_| !text.contains(['.', 'e', 'E']));
    Some(match (column_type, doc) {
        (ColumnType::Boolean, Doc::Bool(value)) => Cell::Bool(*value),
        (ColumnType::Int64 | ColumnType::TimestampMs, Doc::Number(text)) => {
            Cell::Int(whole(text)?.into())
        }
        (ColumnType::Int32, Doc::Number(text)) => Cell::Int(i32::try_from(whole(text)?).ok()?.into()),
        (ColumnType::Float64, Doc::Number(text)) => {
            Cell::Float(Some(text.parse::<f64>().unwrap()).filter(|f| f.is_finite())?.to_bits())
        }
        (ColumnType::String, Doc::Text(value)) => text(value),
        (ColumnType::Decimal { .. }, Doc::Number(number) | Doc::Text(number)) => {
            Cell::Int(decimal_10_2(number)?)
        }
        (ColumnType::TimestampMs, Doc::Text(value)) => {
            let time = Some(value).filter(|value| value.len() >= 20)?.parse::<jiff::Timestamp>();
            let time = time.ok()?;
            (time.subsec_nanosecond() % 1_000_000 == 0).then_some(())?;
            Cell::Int(time.as_millisecond().into())
        }
        (ColumnType::Date, Doc::Text(value)) => {
            let date = Some(value).filter(|value| value.len() == 10)?.parse::<jiff::civil::Date>();
            let since = jiff::civil::date(1970, 1, 1).until(date.ok()?).unwrap();
            Cell::Int(since.get_days().into())
        }
        (ColumnType::Binary, Doc::Text(value)) => {
            Cell::Bytes(base64::engine::general_purpose::STANDARD.decode(value).ok()?)
        }
        (ColumnType::Json, _) => text(raw),
        (ColumnType::List(element), Doc::Array(docs)) => {
            let (inner, nullable) = (&element.column_type, element.nullable);
            Cell::List(docs.iter().map(|d| expected(inner, nullable, d, "")).collect::<Option<_>>()?)
        }
        (ColumnType::Struct(fields), Doc::Object(members)) => {
            let mut cells = BTreeMap::new();
            for field in fields {
                let member = members.iter().find(|(key, _)| *key == field.name);
                let doc = member.map_or(&Doc::Null, |(_, doc)| doc);
                let cell = expected(&field.column_type, field.nullable, doc, "")?;
                cells.insert(field.name.clone(), cell);
            }
            Cell::Struct(cells)
        }
        _ => return None,
    })
}

/// By hand: the digits moved by the exponent, then two places.
fn decimal_10_2(text: &str) -> Option<i128> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let shape_ok = |part: &str| {
        let digits = part.trim_start_matches(['+', '-']);
        part.len() - digits.len() <= 1
            && !digits.is_empty()
            && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let fraction_ok = !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit());
    if !shape_ok(whole) || !fraction_ok || !shape_ok(exponent) {
        return None;
    }
    let exponent: i64 = exponent.parse().ok()?;
    let digits: String = [whole, fraction].concat();
    let negative = digits.starts_with('-');
    let digits = digits.trim_start_matches(['+', '-']);
    let mut point = i64::try_from(digits.len() - fraction.len()).unwrap() + exponent;
    let mut digits = digits.to_owned();
    while point < 0 && digits.len() < 2_000 {
        digits.insert(0, '0');
        point += 1;
    }
    while point + 2 > i64::try_from(digits.len()).unwrap() && digits.len() < 2_000 {
        digits.push('0');
    }
    let (kept, cut) = digits.split_at(usize::try_from(point + 2).ok()?.min(digits.len()));
    if cut.bytes().any(|b| b != b'0') {
        return None;
    }
    let kept = kept.trim_start_matches('0');
    if kept.len() > 10 {
        return None;
    }
    let value: i128 = if kept.is_empty() { 0 } else { kept.parse().unwrap() };
    Some(if negative { -value } else { value })
}

/// Decodes the records, checks each against the oracle and the batch against the accepted ones.
fn check(records: &[Vec<(String, Doc)>], mut style: u64) {
    let schema = every_type();
    let mut decoder = JsonDecoder::new(&schema);
    let mut accepted = Vec::new();
    for record in records {
        let raw: Vec<_> = record.iter().map(|(_, doc)| render(doc, &mut style)).collect();
        let keys: Vec<_> = record.iter().map(|(key, _)| render_text(key, &mut style)).collect();
        let members = keys.iter().zip(&raw).map(|(key, raw)| format!("{key}: {raw}"));
        let value = format!("{{{}}}", members.collect::<Vec<_>>().join(" ,"));
        serde_json::from_str::<serde_json::Value>(&value).expect(&value);
        let row: Option<Vec<Cell>> = schema
            .columns
            .iter()
            .map(|column| {
                let at = record.iter().position(|(key, _)| *key == column.name);
                let (doc, raw) = at.map_or((&Doc::Null, ""), |at| (&record[at].1, raw[at].as_str()));
                expected(&column.column_type, column.nullable, doc, raw)
            })
            .collect();
        let decoded = decoder.decode(value.as_bytes());
        assert_eq!(decoded.is_ok(), row.is_some(), "{value} {decoded:?} {row:?}");
        if let Some(mut row) = row {
            let rest = record.iter().enumerate().filter(|(_, (key, _))| key.len() > 1);
            let rest: Vec<_> = rest.map(|(at, _)| format!("{}:{}", keys[at], raw[at])).collect();
            row.push(if rest.is_empty() { Cell::Null } else { text(&format!("{{{}}}", rest.join(","))) });
            accepted.push(row);
        }
    }
    let columns = decoder.finish().unwrap();
    for (at, row) in accepted.iter().enumerate() {
        let found: Vec<_> = columns.iter().map(|column| cell(column, at)).collect();
        assert_eq!(&found, row);
    }
    assert!(columns.iter().all(|column| column.len() == accepted.len()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn random_records_agree_with_the_oracle(
        records in prop::collection::vec(any_record(), 1..8),
        style in any::<u64>(),
    ) {
        check(&records, style);
    }

    /// With no columns every field is skipped, so that only the grammar decides.
    #[test]
    fn grammar_agrees_with_serde_json_on_mutated_bytes(
        record in any_record(),
        style in any::<u64>(),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 0..4),
    ) {
        let mut value = render(&Doc::Object(record), &mut style.clone()).into_bytes();
        for (at, byte, kind) in mutations {
            let at = at.index(value.len());
            match kind {
                0 => value[at] = byte,
                1 => value.insert(at, byte),
                2 => value[at] = b"\"\\{}[]:,0-.eu \n"[usize::from(byte) % 15],
                _ => value.truncate(at.max(1)),
            }
        }
        let expected = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&value);
        let no_columns = TableSchema::default();
        let found = JsonDecoder::new(&no_columns).decode(&value);
        match expected {
            Err(error) if error.to_string().starts_with("number out of range") => {}
            expected => prop_assert_eq!(found.is_ok(), expected.is_ok(), "{:?} {:?} {:?}", String::from_utf8_lossy(&value), found, expected),
        }
    }

    /// Whatever a bad record was, the rows around it are as if it had not been there.
    #[test]
    fn mutated_records_leave_the_rest_intact(
        records in prop::collection::vec(any_record(), 1..6),
        style in any::<u64>(),
        cut in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let schema = every_type();
        let mut style = style;
        let (mut mixed, mut alone) = (JsonDecoder::new(&schema), JsonDecoder::new(&schema));
        for record in records {
            let value = render(&Doc::Object(record), &mut style).into_bytes();
            let mut broken = value.clone();
            let at = cut.index(broken.len());
            broken[at] = byte;
            for value in [&value[..], &broken, &broken[..at]] {
                if mixed.decode(value).is_ok() {
                    alone.decode(value).unwrap();
                }
            }
        }
        let (mixed, alone) = (mixed.finish().unwrap(), alone.finish().unwrap());
        for (mixed, alone) in mixed.iter().zip(&alone) {
            prop_assert_eq!(Arc::clone(mixed).to_data(), alone.to_data());
        }
    }
}
