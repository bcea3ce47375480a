use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};

use super::*;
use crate::schema::Column;

/// `!` behind a name makes the column required.
pub(super) fn schema(columns: &[(&str, &str)]) -> TableSchema {
    let columns = columns.iter().map(|(name, column_type)| {
        let column = Column::new(name.trim_end_matches('!'), column_type.parse().unwrap());
        if name.ends_with('!') {
            column.required()
        } else {
            column
        }
    });
    TableSchema {
        columns: columns.collect(),
        ..TableSchema::default()
    }
}

fn reason(schema: &TableSchema, value: &[u8]) -> String {
    let mut decoder = JsonDecoder::new(schema);
    let reject = decoder
        .decode(value)
        .expect_err(&String::from_utf8_lossy(value));
    assert_eq!(decoder.rows(), 0);
    reject.reason
}

fn one(column_type: &str, json: &str) -> Cell {
    let schema = schema(&[("v", column_type)]);
    let mut decoder = JsonDecoder::new(&schema);
    decoder
        .decode(format!("{{\"v\":{json}}}").as_bytes())
        .unwrap();
    cell(&decoder.finish().unwrap()[0], 0)
}

/// One value of an array, comparable.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    Null,
    Bool(bool),
    Int(i128),
    Float(u64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    Struct(BTreeMap<String, Self>),
}

pub(super) fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

pub(super) fn cell(array: &ArrayRef, row: usize) -> Cell {
    if array.is_null(row) {
        return Cell::Null;
    }
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "no schema here makes other types"
    )]
    match array.data_type() {
        DataType::Boolean => Cell::Bool(array.as_boolean().value(row)),
        DataType::Int32 => Cell::Int(array.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => Cell::Int(array.as_primitive::<Int64Type>().value(row).into()),
        DataType::Date32 => Cell::Int(array.as_primitive::<Date32Type>().value(row).into()),
        DataType::Timestamp(TimeUnit::Millisecond, _) => Cell::Int(
            array
                .as_primitive::<TimestampMillisecondType>()
                .value(row)
                .into(),
        ),
        DataType::Timestamp(TimeUnit::Microsecond, _) => Cell::Int(
            array
                .as_primitive::<TimestampMicrosecondType>()
                .value(row)
                .into(),
        ),
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
            Cell::Struct(
                named
                    .map(|(f, column)| (f.name().clone(), cell(column, row)))
                    .collect(),
            )
        }
        other => panic!("no cell for {other}"),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn bad_records_are_refused_with_their_reason() {
    let schema = schema(&[
        ("id!", "int64"),
        ("n", "int32"),
        ("s", "string"),
        ("x", "float64"),
    ]);
    for (value, expected) in [
        (&b""[..], "the value is empty (0 bytes)"),
        (b" \n", "the value is blank"),
        (b"[1]", "not a JSON object but `[1]`"),
        (b"null", "not a JSON object but `null`"),
        (b"\"x\"", "not a JSON object but `\"x\"`"),
        (b"hello", "not a JSON object but `hello`"),
        (
            b"{\"id\":1}{\"id\":2}",
            "something follows the JSON object at byte 8: `{\"id\":2}`",
        ),
        (
            b"{\"id\":1}\n{\"id\":2}",
            "something follows the JSON object at byte 9: `{\"id\":2}`",
        ),
        (
            b"{\"id\":1} x",
            "something follows the JSON object at byte 9: `x`",
        ),
        (b"{\"id\":1", "the JSON ends early, at byte 7"),
        (b"{\"id\":1,", "the JSON ends early, at byte 8"),
        (b"{\"id\"", "the JSON ends early, at byte 5"),
        (b"{\"id\":1,\"s\":\"abc", "the JSON ends early, at byte 16"),
        (b"{\"id\":1,\"s\":nul", "the JSON ends early, at byte 15"),
        (
            b"{\"id\":1,}",
            "malformed JSON at byte 8: expected a key in quotes, found `}`",
        ),
        (
            b"{id:1}",
            "malformed JSON at byte 1: expected a key in quotes, found `id:1}`",
        ),
        (
            b"{\"id\":1 \"n\":2}",
            "malformed JSON at byte 8: expected `,` or `}`, found `\"n\"`",
        ),
        (
            b"{\"id\":01}",
            "malformed JSON at byte 6: expected no zero in front of digits, found `0`",
        ),
        (
            b"{\"id\":1,\"s\":\"a\x01\"}",
            "malformed JSON at byte 14: expected no control character in a string, found `\u{1}\"}`",
        ),
        (
            b"{\"id\":1,\"s\":\"\\q\"}",
            "malformed JSON at byte 13: expected a known escape, found `\\q\"}`",
        ),
        (b"{\"id\":1,\"s\":\"\xff\"}", "not UTF-8 at byte 13"),
        (b"{\"id\":1.5}", "column `id` is not an int64 but `1.5`"),
        (b"{\"id\":1.0}", "column `id` is not an int64 but `1.0`"),
        (b"{\"id\":1e3}", "column `id` is not an int64 but `1e3`"),
        (b"{\"id\":\"5\"}", "column `id` is not an int64 but `\"5\"`"),
        (
            b"{\"id\":9223372036854775808}",
            "column `id` is out of range for an int64: `9223372036854775808`",
        ),
        (
            b"{\"id\":1,\"n\":2147483648}",
            "column `n` is out of range for an int32: `2147483648`",
        ),
        (b"{\"id\":null}", "column `id` is required but null"),
        (
            b"{\"n\":1}",
            "column `id` is required but its field is missing",
        ),
        (b"{\"id\":1,\"s\":5}", "column `s` is not a string but `5`"),
        (
            b"{\"id\":1,\"x\":NaN}",
            "malformed JSON at byte 12: expected a value, found `NaN}`",
        ),
        (
            b"{\"id\":1,\"x\":1e999}",
            "column `x` is out of range for a float64: `1e999`",
        ),
        (
            b"{\"id\":1,\"x\":\"1\"}",
            "column `x` is not a float64 but `\"1\"`",
        ),
        (b"{\"id\":1,\"id\":1}", "key `\"id\"` appears twice"),
        (
            b"{\"id\":1,\"i\\u0064\":1}",
            "key `\"i\\u0064\"` appears twice",
        ),
    ] {
        assert_eq!(
            reason(&schema, value),
            expected,
            "{}",
            String::from_utf8_lossy(value)
        );
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
    assert_eq!(
        one("int64", "-9223372036854775808"),
        Cell::Int(i64::MIN.into())
    );
    assert_eq!(
        one("int64", "9007199254740993"),
        Cell::Int(9_007_199_254_740_993)
    );
    assert_eq!(one("float64", "5"), Cell::Float(5.0_f64.to_bits()));
    assert_eq!(
        one("float64", "-1.5e-3"),
        Cell::Float((-0.0015_f64).to_bits())
    );
    assert_eq!(one("boolean", "false"), Cell::Bool(false));
    assert_eq!(
        one("string", r#""a\"\u00e4\ud83d\ude00\n""#),
        text("a\"ä\u{1F600}\n")
    );
    assert_eq!(
        one("binary", r#""AP8\/""#),
        Cell::Bytes(vec![0, 0xFF, 0x3F])
    );
    assert_eq!(one("date", "\"1969-12-31\""), Cell::Int(-1));
    assert_eq!(
        one("timestamp_ms", "1796036709250"),
        Cell::Int(1_796_036_709_250)
    );
    assert_eq!(
        one("timestamp_ms", "\"2026-11-30T13:05:09.250+02:00\""),
        Cell::Int(1_796_036_709_250)
    );
    assert_eq!(
        one("timestamp_us", "\"1969-12-31T23:59:59.999999Z\""),
        Cell::Int(-1)
    );
    assert_eq!(one("decimal(38,10)", "\"-0.0000000001\""), Cell::Int(-1));
    assert_eq!(
        one("decimal(38,10)", "12345678901234567890.5"),
        Cell::Int(123_456_789_012_345_678_905_000_000_000)
    );
    assert_eq!(
        one("json", r#"{"a" : [1, 2.50]}"#),
        text(r#"{"a" : [1, 2.50]}"#)
    );
    assert_eq!(one("json", "null"), Cell::Null);
    assert_eq!(
        one("list<int64>", "[1, null , 3]"),
        Cell::List(vec![Cell::Int(1), Cell::Null, Cell::Int(3)])
    );
    assert_eq!(one("list<int64>", "[ ]"), Cell::List(Vec::new()));
    let inner = [("a".to_owned(), Cell::Int(1)), ("b".to_owned(), Cell::Null)];
    assert_eq!(
        one("struct<a: int64, b: string>", r#"{"c":{},"a":1}"#),
        Cell::Struct(inner.into())
    );
}

#[test]
fn values_that_would_lose_something_are_refused() {
    for (column_type, json, expected) in [
        (
            "timestamp_ms",
            "\"2026-11-30T13:05:09.2505Z\"",
            "column `v` has more digits than a timestamp_ms (timestamp_us keeps microseconds): `\"2026-11-30T13:05:09.2505Z\"`",
        ),
        (
            "timestamp_ms",
            "1.5",
            "column `v` is not a timestamp (integer milliseconds or RFC 3339 text) but `1.5`",
        ),
        (
            "timestamp_ms",
            "\"2026-11-30 13:05:09\"",
            "column `v` is not a timestamp (integer milliseconds or RFC 3339 text) but `\"2026-11-30 13:05:09\"`",
        ),
        (
            "date",
            "\"2026-02-30\"",
            "column `v` is not a date such as \"2026-11-30\" but `\"2026-02-30\"`",
        ),
        (
            "decimal(5,1)",
            "1.25",
            "column `v` has more digits than the decimal's scale: `1.25`",
        ),
        (
            "decimal(5,1)",
            "12345.6",
            "column `v` is out of range for the decimal's digits: `12345.6`",
        ),
        (
            "decimal(5,1)",
            "\"x\"",
            "column `v` is not a decimal but `\"x\"`",
        ),
        (
            "decimal(5,1)",
            "true",
            "column `v` is not a decimal but `true`",
        ),
        (
            "binary",
            "\"AP8\"",
            "column `v` is not base64 text but `\"AP8\"`",
        ),
        (
            "list<int64 not null>",
            "[1,null]",
            "column `v[]` is required but null",
        ),
        (
            "list<struct<a: int32>>",
            "[{},{\"a\":\"b\"}]",
            "column `v[].a` is not an int32 but `\"b\"`",
        ),
        (
            "struct<a: struct<b: int64 not null>>",
            "{\"a\":{}}",
            "column `v.a.b` is required but its field is missing",
        ),
        (
            "struct<a: int64>",
            "{\"a\":1,\"a\":2}",
            "column `v` holds the key `\"a\"` twice",
        ),
        (
            "struct<a: int64>",
            "[]",
            "column `v` is not an object but `[]`",
        ),
        ("list<int64>", "{}", "column `v` is not an array but `{}`"),
    ] {
        let value = format!("{{\"v\":{json}}}");
        assert_eq!(
            reason(&schema(&[("v", column_type)]), value.as_bytes()),
            expected,
            "{json}"
        );
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
    assert_eq!(
        cell(rest, 0),
        text(r#"{"z":[1, {"y":null}],"\u00e9":"\u00e9"}"#)
    );
    assert_eq!(cell(rest, 1), Cell::Null);
    assert_eq!(
        reason(&schema, br#"{"z":1,"z":2}"#),
        "key `\"z\"` appears twice"
    );
    let many: Vec<String> = (0..40).map(|n| format!("\"k{n}\":1")).collect();
    let twice = format!("{{{},\"k39\":1}}", many.join(","));
    assert_eq!(
        reason(&schema, twice.as_bytes()),
        "key `\"k39\"` appears twice"
    );
}

#[test]
fn nesting_is_limited_where_it_is_read_and_where_it_is_skipped() {
    let nested = |levels: usize| {
        format!("{{\"v\":{}{}}}", "[".repeat(levels), "]".repeat(levels)).into_bytes()
    };
    for columns in [&[][..], &[("v", "json")]] {
        let schema = schema(columns);
        JsonDecoder::new(&schema)
            .decode(&nested(MAX_DEPTH - 1))
            .unwrap();
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
    assert!(
        reject.reason.contains("would grow beyond"),
        "{}",
        reject.reason
    );
    assert_eq!(decoder.rows(), 0);
    assert!(decoder.bytes() < 10_000, "{}", decoder.bytes());
}

#[test]
fn a_rejected_record_leaves_no_trace_whatever_was_written_of_it() {
    let schema = every_type();
    let good = r#"{"b":7,"a":1,"c":1.5,"d":"x","e":true,"f":1.25,"g":5,"h":"2026-11-30","i":[1,2],"j":{"x":1,"y":["p"]},"k":[1],"l":"AAA=","new":1}"#;
    // Every prefix is a bad record that stops somewhere else.
    let bad: Vec<&str> = (0..good.len())
        .map(|end| good.get(..end).unwrap())
        .collect();
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
    let mut decoder = JsonDecoder::new(&schema(&[
        ("a", "int64"),
        ("s", "struct<x: int64 not null>"),
    ]));
    decoder.decode(br#"{"a":1,"s":{"x":1}}"#).unwrap();
    decoder.push_nulls();
    decoder.decode(br#"{"a":3}"#).unwrap();
    let columns = decoder.finish().unwrap();
    assert_eq!(cell(&columns[0], 1), Cell::Null);
    assert_eq!(cell(&columns[1], 1), Cell::Null);
    assert_eq!(cell(&columns[0], 2), Cell::Int(3));
}

pub(super) fn every_type() -> TableSchema {
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
