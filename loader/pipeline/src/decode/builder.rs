//! Column builders that can be cut back to any earlier row, which Arrow's own cannot.

use std::sync::Arc;

use arrow_array::types::{
    Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType,
};
use arrow_array::{
    ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, ListArray, PrimitiveArray,
    StringArray, StructArray,
};
use arrow_buffer::{BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, Field, Fields};

use super::object::ObjectBuilder;
use super::{Fault, FaultKind};
use crate::schema::{Column, ColumnType, ELEMENT, struct_fields};

/// Most bytes that a column keeps ready for its next chunk.
const MOST_ROOM: usize = 4 << 20;

/// Values of one column, a row each, null or not.
#[derive(Debug)]
pub(crate) struct ColumnBuilder {
    validity: Validity,
    pub(super) values: Values,
}

/// The values by type. A null occupies a slot here too.
#[derive(Debug)]
pub(crate) enum Values {
    Boolean(BooleanBufferBuilder),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float64(Vec<f64>),
    Date(Vec<i32>),
    TimestampMs(Vec<i64>),
    TimestampUs(Vec<i64>),
    Decimal {
        values: Vec<i128>,
        precision: u8,
        scale: u8,
    },
    String(Variable),
    Json(Variable),
    Binary(Variable),
    List(Box<ListBuilder>),
    Struct(Box<StructBuilder>),
}

/// Elements of lists, and where each list ends.
#[derive(Debug)]
pub(crate) struct ListBuilder {
    offsets: Vec<i32>,
    field: Arc<Field>,
    /// Primitive cells one element takes, for the bound on what a record may grow to.
    pub(super) cells: usize,
    pub(super) nullable: bool,
    pub(super) element: ColumnBuilder,
}

/// A struct's columns and their Arrow fields.
#[derive(Debug)]
pub(crate) struct StructBuilder {
    fields: Fields,
    pub(super) object: ObjectBuilder,
}

/// Which rows are not null; a bitmap only once there was a null.
#[derive(Debug, Default)]
struct Validity {
    len: usize,
    bits: Option<BooleanBufferBuilder>,
}

/// Byte strings end to end.
#[derive(Debug)]
pub(crate) struct Variable {
    offsets: Vec<i32>,
    data: Vec<u8>,
}

impl Validity {
    #[inline]
    fn push(&mut self, valid: bool) {
        if !valid && self.bits.is_none() {
            let mut bits = BooleanBufferBuilder::new(self.len + 1);
            bits.append_n(self.len, true);
            self.bits = Some(bits);
        }
        if let Some(bits) = &mut self.bits {
            bits.append(valid);
        }
        self.len += 1;
    }

    fn truncate(&mut self, len: usize) {
        if let Some(bits) = &mut self.bits {
            bits.truncate(len);
        }
        self.len = self.len.min(len);
    }

    fn finish(&mut self) -> Option<NullBuffer> {
        self.len = 0;
        let nulls = NullBuffer::new(self.bits.take()?.finish());
        (nulls.null_count() > 0).then_some(nulls)
    }
}

impl Variable {
    pub(crate) fn new() -> Self {
        Self {
            offsets: vec![0],
            data: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, value: &[u8]) -> Result<(), Fault> {
        self.data.extend_from_slice(value);
        self.close_value()
    }

    /// Ends a value whose bytes were appended to [`Self::data_mut`].
    pub(crate) fn close_value(&mut self) -> Result<(), Fault> {
        let end = i32::try_from(self.data.len()).map_err(|_| Fault {
            at: 0,
            kind: FaultKind::TooLarge,
        })?;
        self.offsets.push(end);
        Ok(())
    }

    pub(crate) const fn data_mut(&mut self) -> &mut Vec<u8> {
        &mut self.data
    }

    fn push_empty(&mut self) {
        self.offsets.push(end_of(&self.offsets));
    }

    fn truncate(&mut self, len: usize) {
        self.offsets.truncate(len + 1);
        self.data
            .truncate(usize::try_from(end_of(&self.offsets)).unwrap_or(0));
    }

    const fn bytes(&self) -> usize {
        self.data.len() + self.offsets.len() * size_of::<i32>()
    }

    fn take(&mut self) -> (OffsetBuffer<i32>, Buffer) {
        let data = take_with_room(&mut self.data);
        let offsets = take_with_room(&mut self.offsets);
        self.offsets.push(0);
        (offset_buffer(offsets), Buffer::from_vec(data))
    }

    fn finish_strings(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
        let (offsets, data) = self.take();
        Ok(Arc::new(StringArray::try_new(offsets, data, nulls)?))
    }

    fn finish_binary(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
        let (offsets, data) = self.take();
        Ok(Arc::new(BinaryArray::try_new(offsets, data, nulls)?))
    }
}

/// Hands out the values, and leaves room for about as many: the next chunk is like this one, and growing
/// step by step would copy it twice over.
pub(crate) fn take_with_room<T>(values: &mut Vec<T>) -> Vec<T> {
    let room = values.len() + values.len() / 8;
    // What one large value took is not kept.
    let room = if room * size_of::<T>() > MOST_ROOM {
        0
    } else {
        room
    };
    std::mem::replace(values, Vec::with_capacity(room))
}

/// Offsets start with 0 and only grow, as every method here keeps them.
fn offset_buffer(offsets: Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(ScalarBuffer::from(offsets))
}

fn end_of(offsets: &[i32]) -> i32 {
    offsets.last().copied().unwrap_or(0)
}

impl ListBuilder {
    fn new(element: &Column) -> Self {
        let field = Field::new(ELEMENT, element.column_type.to_arrow(), element.nullable);
        Self {
            offsets: vec![0],
            field: Arc::new(field),
            cells: cells(&element.column_type),
            nullable: element.nullable,
            element: ColumnBuilder::new(&element.column_type),
        }
    }

    /// Ends a list whose elements were appended to [`Self::element`].
    pub(super) fn close_list(&mut self) -> Result<(), Fault> {
        let end = i32::try_from(self.element.len()).map_err(|_| Fault {
            at: 0,
            kind: FaultKind::TooLarge,
        })?;
        self.offsets.push(end);
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        self.offsets.truncate(len + 1);
        self.element
            .truncate(usize::try_from(end_of(&self.offsets)).unwrap_or(0));
    }

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
        let offsets = offset_buffer(std::mem::replace(&mut self.offsets, vec![0]));
        let element = self.element.finish()?;
        Ok(Arc::new(ListArray::try_new(
            Arc::clone(&self.field),
            offsets,
            element,
            nulls,
        )?))
    }
}

fn cells(column_type: &ColumnType) -> usize {
    if let ColumnType::Struct(fields) = column_type {
        return 1 + fields
            .iter()
            .map(|field| cells(&field.column_type))
            .sum::<usize>();
    }
    1
}

impl ColumnBuilder {
    pub(crate) fn new(column_type: &ColumnType) -> Self {
        let values = match column_type {
            ColumnType::Boolean => Values::Boolean(BooleanBufferBuilder::new(0)),
            ColumnType::Int32 => Values::Int32(Vec::new()),
            ColumnType::Int64 => Values::Int64(Vec::new()),
            ColumnType::Float64 => Values::Float64(Vec::new()),
            ColumnType::String => Values::String(Variable::new()),
            ColumnType::Binary => Values::Binary(Variable::new()),
            ColumnType::Date => Values::Date(Vec::new()),
            ColumnType::TimestampMs => Values::TimestampMs(Vec::new()),
            ColumnType::TimestampUs => Values::TimestampUs(Vec::new()),
            ColumnType::Decimal { precision, scale } => Values::Decimal {
                values: Vec::new(),
                precision: *precision,
                scale: *scale,
            },
            ColumnType::List(element) => Values::List(Box::new(ListBuilder::new(element))),
            ColumnType::Struct(fields) => Values::Struct(Box::new(StructBuilder {
                fields: struct_fields(fields),
                object: ObjectBuilder::new(fields),
            })),
            ColumnType::Json => Values::Json(Variable::new()),
        };
        Self {
            validity: Validity::default(),
            values,
        }
    }

    /// Rows finished; a row is finished once it is marked valid or null.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.validity.len
    }

    /// Ends a row whose value was appended to `values`.
    #[inline]
    pub(crate) fn mark_valid(&mut self) {
        self.validity.push(true);
    }

    pub(crate) fn push_null(&mut self) {
        self.validity.push(false);
        match &mut self.values {
            Values::Boolean(values) => values.append(false),
            Values::Int32(values) | Values::Date(values) => values.push(0),
            Values::Int64(values) | Values::TimestampMs(values) | Values::TimestampUs(values) => {
                values.push(0);
            }
            Values::Float64(values) => values.push(0.0),
            Values::Decimal { values, .. } => values.push(0),
            Values::String(values) | Values::Json(values) | Values::Binary(values) => {
                values.push_empty();
            }
            Values::List(list) => list.offsets.push(end_of(&list.offsets)),
            Values::Struct(nested) => nested.object.push_nulls(),
        }
    }

    /// Appends a row to a binary column.
    #[inline]
    pub(crate) fn push_bytes(&mut self, value: Option<&[u8]>) {
        if let (Some(value), Values::Binary(values)) = (value, &mut self.values)
            && values.push(value).is_ok()
        {
            self.mark_valid();
        } else {
            self.push_null();
        }
    }

    /// Cuts back to the first `len` rows, whatever state a row behind them was left in.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.validity.truncate(len);
        match &mut self.values {
            Values::Boolean(values) => values.truncate(len),
            Values::Int32(values) | Values::Date(values) => values.truncate(len),
            Values::Int64(values) | Values::TimestampMs(values) | Values::TimestampUs(values) => {
                values.truncate(len);
            }
            Values::Float64(values) => values.truncate(len),
            Values::Decimal { values, .. } => values.truncate(len),
            Values::String(values) | Values::Json(values) | Values::Binary(values) => {
                values.truncate(len);
            }
            Values::List(list) => list.truncate(len),
            Values::Struct(nested) => nested.object.truncate(len),
        }
    }

    /// Bytes of the values held, without spare capacity.
    pub(crate) fn bytes(&self) -> usize {
        let values = match &self.values {
            Values::Boolean(values) => values.len() / 8,
            Values::Int32(values) | Values::Date(values) => size_of_val(values.as_slice()),
            Values::Int64(values) | Values::TimestampMs(values) | Values::TimestampUs(values) => {
                size_of_val(values.as_slice())
            }
            Values::Float64(values) => size_of_val(values.as_slice()),
            Values::Decimal { values, .. } => size_of_val(values.as_slice()),
            Values::String(values) | Values::Json(values) | Values::Binary(values) => {
                values.bytes()
            }
            Values::List(list) => list.offsets.len() * size_of::<i32>() + list.element.bytes(),
            Values::Struct(nested) => nested.object.bytes(),
        };
        values + self.validity.bits.as_ref().map_or(0, |bits| bits.len() / 8)
    }

    /// Hands out the rows as an array and starts anew.
    pub(crate) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let rows = self.validity.len;
        let nulls = self.validity.finish();
        Ok(match &mut self.values {
            Values::Boolean(values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Values::Int32(values) => Arc::new(primitive::<Int32Type>(values, nulls)?),
            Values::Int64(values) => Arc::new(primitive::<Int64Type>(values, nulls)?),
            Values::Float64(values) => Arc::new(primitive::<Float64Type>(values, nulls)?),
            Values::Date(values) => Arc::new(primitive::<Date32Type>(values, nulls)?),
            Values::TimestampMs(values) => {
                Arc::new(primitive::<TimestampMillisecondType>(values, nulls)?.with_timezone("UTC"))
            }
            Values::TimestampUs(values) => {
                Arc::new(primitive::<TimestampMicrosecondType>(values, nulls)?.with_timezone("UTC"))
            }
            Values::Decimal {
                values,
                precision,
                scale,
            } => {
                let scale = i8::try_from(*scale).unwrap_or(i8::MAX);
                let array = primitive::<Decimal128Type>(values, nulls)?;
                Arc::new(array.with_precision_and_scale(*precision, scale)?)
            }
            Values::String(values) | Values::Json(values) => values.finish_strings(nulls)?,
            Values::Binary(values) => values.finish_binary(nulls)?,
            Values::List(list) => list.finish(nulls)?,
            Values::Struct(nested) => {
                let columns = nested.object.finish()?;
                let fields = nested.fields.clone();
                Arc::new(StructArray::try_new_with_length(
                    fields, columns, nulls, rows,
                )?)
            }
        })
    }
}

fn primitive<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
) -> Result<PrimitiveArray<T>, ArrowError> {
    PrimitiveArray::try_new(ScalarBuffer::from(take_with_room(values)), nulls)
}
