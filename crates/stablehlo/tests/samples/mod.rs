//! One small module for every operation, shared by the snapshot and the compile tests.

#![allow(dead_code, clippy::approx_constant, clippy::unwrap_used)]

use stablehlo::ElementType::*;
use stablehlo::*;

pub type Unary = fn(&mut Builder, Value) -> Result<Value>;
pub type Binary = fn(&mut Builder, Value, Value) -> Result<Value>;

macro_rules! methods {
    ($($name:ident)+) => { &[$((stringify!($name), Builder::$name)),+] };
}

pub const FLOAT_UNARY: &[(&str, Unary)] = methods! {
    abs cbrt ceil cosine exponential exponential_minus_one floor is_finite log log_plus_one logistic negate
    real round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh
};

pub const CHLO_UNARY: &[(&str, Unary)] = methods! {
    acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc is_inf is_neg_inf is_pos_inf
    lgamma sinh square
};

pub const INTEGER_UNARY: &[(&str, Unary)] = methods! { abs count_leading_zeros negate not popcnt sign };

pub const COMPLEX_UNARY: &[(&str, Unary)] = methods! {
    abs acos acosh asin asinh atan atanh conj cosh cosine exponential exponential_minus_one imag log
    log_plus_one logistic negate real rsqrt sign sine sinh sqrt square tan tanh
};

pub const FLOAT_BINARY: &[(&str, Binary)] = methods! {
    add atan2 divide maximum minimum multiply next_after polygamma power remainder subtract zeta
};

pub const INTEGER_BINARY: &[(&str, Binary)] = methods! {
    add and divide maximum minimum multiply or power remainder shift_left shift_right_arithmetic
    shift_right_logical subtract xor
};

pub const PRED_BINARY: &[(&str, Binary)] = methods! { add and maximum minimum multiply or xor };

pub const COMPLEX_BINARY: &[(&str, Binary)] = methods! { add atan2 divide multiply power subtract };

pub fn tensor(elem: ElementType, dims: &[i64]) -> TensorType {
    TensorType::new(elem, dims)
}

/// Applies every function of a table to parameters of one type; one result each.
pub fn unary_module(name: &str, table: &[(&str, Unary)], ty: TensorType) -> Result<Module> {
    let mut b = Builder::new(name);
    let x = b.parameter(ty);
    let results = table.iter().map(|(_, f)| f(&mut b, x)).collect::<Result<Vec<_>>>()?;
    b.finish(&results)
}

pub fn binary_module(name: &str, table: &[(&str, Binary)], ty: TensorType) -> Result<Module> {
    let mut b = Builder::new(name);
    let (x, y) = (b.parameter(ty.clone()), b.parameter(ty));
    let results = table.iter().map(|(_, f)| f(&mut b, x, y)).collect::<Result<Vec<_>>>()?;
    b.finish(&results)
}

/// A module of the operations that `build` makes from parameters of the given types.
pub fn module(
    name: &str,
    parameters: &[TensorType],
    build: impl FnOnce(&mut Builder, &[Value]) -> Result<Vec<Value>>,
) -> Module {
    let mut b = Builder::new(name);
    let values: Vec<Value> = parameters.iter().map(|ty| b.parameter(ty.clone())).collect();
    let results = build(&mut b, &values).unwrap_or_else(|e| panic!("{name}: {e}"));
    let module = b.finish(&results).unwrap_or_else(|e| panic!("{name}: {e}"));
    verify(&module).unwrap_or_else(|e| panic!("{name}: {e}\n{}", module.text()));
    module
}

pub fn all() -> Vec<(&'static str, Module)> {
    let mut list = elementwise();
    list.extend(shapes());
    list.extend(reductions());
    list.extend(contractions());
    list.extend(indexing());
    list.extend(control());
    list.extend(others());
    list
}

fn elementwise() -> Vec<(&'static str, Module)> {
    let f = tensor(F32, &[2, 3]);
    let p = tensor(Pred, &[2, 3]);
    vec![
        ("float_unary", unary_module("float_unary", FLOAT_UNARY, f.clone()).unwrap()),
        ("chlo_unary", unary_module("chlo_unary", CHLO_UNARY, f.clone()).unwrap()),
        ("integer_unary", unary_module("integer_unary", INTEGER_UNARY, tensor(S32, &[4])).unwrap()),
        ("complex_unary", unary_module("complex_unary", COMPLEX_UNARY, tensor(C64, &[4])).unwrap()),
        ("float_binary", binary_module("float_binary", FLOAT_BINARY, f.clone()).unwrap()),
        ("integer_binary", binary_module("integer_binary", INTEGER_BINARY, tensor(U8, &[4])).unwrap()),
        ("pred_binary", binary_module("pred_binary", PRED_BINARY, tensor(Pred, &[4])).unwrap()),
        ("complex_binary", binary_module("complex_binary", COMPLEX_BINARY, tensor(C64, &[4])).unwrap()),
        (
            "compare",
            module("compare", &[f.clone(), f.clone(), tensor(S8, &[2]), tensor(U8, &[2])], |b, v| {
                let mut results = Vec::new();
                for d in [Direction::Eq, Direction::Ne, Direction::Ge, Direction::Gt, Direction::Le] {
                    results.push(b.compare(v[0], v[1], d)?);
                }
                results.push(b.compare(v[2], v[2], Direction::Lt)?);
                results.push(b.compare(v[3], v[3], Direction::Lt)?);
                results.push(b.compare_total_order(v[0], v[1], Direction::Lt)?);
                Ok(results)
            }),
        ),
        (
            "select_clamp",
            module("select_clamp", &[p.clone(), tensor(Pred, &[]), f.clone(), f.clone()], |b, v| {
                let low = b.constant_f64(F32, -1.0)?;
                let high = b.constant_f64(F32, 1.0)?;
                Ok(vec![
                    b.select(v[0], v[2], v[3])?,
                    b.select(v[1], v[2], v[3])?,
                    b.clamp(low, v[2], high)?,
                    b.clamp(v[2], v[3], v[2])?,
                ])
            }),
        ),
        (
            "conversions",
            module("conversions", &[f.clone(), tensor(F64, &[2]), tensor(S32, &[2, 2]), p], |b, v| {
                Ok(vec![
                    b.convert(v[0], BF16)?,
                    b.convert(v[0], S64)?,
                    b.convert(v[0], Pred)?,
                    b.convert(v[3], F32)?,
                    b.convert(v[0], C64)?,
                    b.bitcast_convert(v[0], S32)?,
                    b.bitcast_convert(v[1], U8)?,
                    b.bitcast_convert(v[2], F64)?,
                    b.reduce_precision(v[0], 5, 10)?,
                    b.complex(v[0], v[0])?,
                ])
            }),
        ),
    ]
}

fn shapes() -> Vec<(&'static str, Module)> {
    let f = tensor(F32, &[2, 3]);
    let i = tensor(S32, &[]);
    vec![
        (
            "shape",
            module("shape", std::slice::from_ref(&f), |b, v| {
                let zero = b.zero(F32)?;
                Ok(vec![
                    b.reshape(v[0], &[3, 2, 1])?,
                    b.transpose(v[0], &[1, 0])?,
                    b.broadcast_in_dim(v[0], &[2, 4, 3], &[0, 2])?,
                    b.slice(v[0], &[0, 1], &[2, 3], &[2, 1])?,
                    b.pad(v[0], zero, &[1, -1], &[0, 2], &[1, 0])?,
                    b.concatenate(&[v[0], v[0]], 1)?,
                    b.reverse(v[0], &[0, 1])?,
                ])
            }),
        ),
        (
            "dynamic_slices",
            module("dynamic_slices", &[f.clone(), tensor(F32, &[1, 2]), i.clone(), i], |b, v| {
                Ok(vec![
                    b.dynamic_slice(v[0], &[v[2], v[3]], &[1, 2])?,
                    b.dynamic_update_slice(v[0], v[1], &[v[2], v[3]])?,
                ])
            }),
        ),
        ("constants", module("constants", &[], |b, _| constants(b))),
    ]
}

fn constants(b: &mut Builder) -> Result<Vec<Value>> {
    let mut results = vec![
        b.constant_f64(F32, 0.1)?,
        b.constant_f64(F32, -0.0)?,
        b.constant_f64(F32, f64::NAN)?,
        b.constant_f64(F64, f64::NEG_INFINITY)?,
        b.constant_f64(F64, 5e-324)?,
        b.constant_f64(F64, 1e300)?,
        b.constant_f64(F32, 1e-42)?,
        b.constant_f64(BF16, 3.141592653589793)?,
        b.constant_f64(F16, 65520.0)?,
        b.constant_i64(S64, i64::MIN)?,
        b.constant(U64, u64::MAX)?,
        b.constant(Pred, true)?,
        b.constant(C64, (1.5, -0.0))?,
        b.constant(C128, (f64::INFINITY, 2.0))?,
        b.splat(S32, &[2, 2], 7)?,
        b.constant_i64_array(&[1, -2, 3])?,
        b.constant_dense(tensor(F32, &[2, 2]), &[0u8; 16])?,
        b.constant_dense(tensor(U8, &[2, 32]), &(0u8..64).collect::<Vec<_>>())?,
        b.constant_dense(tensor(Pred, &[2, 2]), &[1, 0, 0, 1])?,
        b.constant_dense(tensor(S4, &[3]), &[0xff, 0, 7])?,
        b.constant_dense(tensor(F32, &[0, 3]), &[])?,
        b.iota(tensor(S32, &[2, 3]), 1)?,
    ];
    for elem in [Pred, S8, U8, F16, F32, S64, U64] {
        results.push(b.min_value(elem)?);
        results.push(b.max_value(elem)?);
    }
    Ok(results)
}

fn reductions() -> Vec<(&'static str, Module)> {
    let f = tensor(F32, &[2, 4]);
    vec![
        (
            "reduce",
            module("reduce", &[f.clone(), tensor(S32, &[2, 4]), tensor(Pred, &[2, 4])], |b, v| {
                let (low, zero) = (b.min_value(F32)?, b.zero(S32)?);
                let mut results = b.reduce(&[v[0], v[1]], &[low, zero], &[1], |b, a| {
                    let better = b.compare(a[0], a[2], Direction::Ge)?;
                    Ok(vec![b.select(better, a[0], a[2])?, b.select(better, a[1], a[3])?])
                })?;
                results.extend([
                    b.reduce_add(v[0], &[0, 1])?,
                    b.reduce_mul(v[0], &[0])?,
                    b.reduce_max(v[1], &[1])?,
                    b.reduce_min(v[1], &[1])?,
                    b.reduce_and(v[2], &[1])?,
                    b.reduce_or(v[2], &[1])?,
                    b.reduce_and(v[1], &[1])?,
                ]);
                Ok(results)
            }),
        ),
        (
            "windows",
            module("windows", &[f.clone(), tensor(F32, &[1, 2])], |b, v| {
                let (low, zero) = (b.min_value(F32)?, b.zero(F32)?);
                let mut window = WindowDims::new(&[2, 2]);
                window.strides = Dims::from_slice(&[1, 2]);
                let mut results =
                    b.reduce_window(&[v[0]], &[low], &window, |b, a| Ok(vec![b.maximum(a[0], a[1])?]))?;
                results.push(b.select_and_scatter(
                    v[0],
                    v[1],
                    zero,
                    &window,
                    |b, a| b.compare(a[0], a[1], Direction::Ge),
                    |b, a| b.add(a[0], a[1]),
                )?);
                window.padding = vec![(1, 0), (0, 1)];
                window.window_dilations = Dims::from_slice(&[1, 2]);
                window.base_dilations = Dims::from_slice(&[2, 1]);
                results
                    .extend(b.reduce_window(&[v[0]], &[zero], &window, |b, a| Ok(vec![b.add(a[0], a[1])?]))?);
                Ok(results)
            }),
        ),
        (
            "sort",
            module("sort", &[f, tensor(S32, &[2, 4])], |b, v| {
                let mut results =
                    b.sort(&[v[0], v[1]], 1, true, |b, a| b.compare_total_order(a[0], a[1], Direction::Lt))?;
                let (values, positions) = b.top_k(v[0], 2)?;
                results.extend([values, positions]);
                Ok(results)
            }),
        ),
    ]
}

fn contractions() -> Vec<(&'static str, Module)> {
    vec![
        (
            "dot",
            module("dot", &[tensor(BF16, &[5, 2, 3]), tensor(BF16, &[5, 3, 4])], |b, v| {
                let flat = DotDimensionNumbers::new(&[], &[], &[0, 2], &[0, 1]);
                Ok(vec![
                    b.matmul(v[0], v[1], Precision::Default)?,
                    b.dot_general(v[0], v[1], &flat, Precision::Highest, F32)?,
                ])
            }),
        ),
        (
            "convolution",
            module("convolution", &[tensor(F32, &[2, 4, 8, 8]), tensor(F32, &[6, 2, 3, 3])], |b, v| {
                let mut window = ConvWindow::unit(2);
                let dims = ConvDimensionNumbers::nchw(2);
                let plain = b.convolution(v[0], v[1], &dims, &window, 2, 1, Precision::Default, F32)?;
                window.strides = Dims::from_slice(&[2, 1]);
                window.padding = vec![(1, 1), (0, 2)];
                window.rhs_dilation = Dims::from_slice(&[1, 2]);
                window.lhs_dilation = Dims::from_slice(&[2, 1]);
                window.reversal = vec![true, false];
                let other = b.convolution(v[0], v[1], &dims, &window, 2, 1, Precision::High, F32)?;
                Ok(vec![plain, other])
            }),
        ),
        (
            "matrices",
            module("matrices", &[tensor(F32, &[2, 3, 3]), tensor(F32, &[2, 3, 1])], |b, v| {
                Ok(vec![
                    b.cholesky(v[0], true)?,
                    b.triangular_solve(v[0], v[1], true, true, false, Transpose::NoTranspose)?,
                    b.triangular_solve(v[0], v[1], true, false, true, Transpose::Adjoint)?,
                ])
            }),
        ),
        (
            "fft",
            module("fft", &[tensor(C64, &[4, 8]), tensor(F32, &[4, 8])], |b, v| {
                let spectrum = b.fft(v[1], FftType::Rfft, &[4, 8])?;
                Ok(vec![
                    b.fft(v[0], FftType::Fft, &[8])?,
                    b.fft(v[0], FftType::Ifft, &[4, 8])?,
                    spectrum,
                    b.fft(spectrum, FftType::Irfft, &[4, 8])?,
                ])
            }),
        ),
    ]
}

fn indexing() -> Vec<(&'static str, Module)> {
    let rows = GatherDimensionNumbers {
        offset_dims: Dims::from_slice(&[1]),
        collapsed_slice_dims: Dims::from_slice(&[0]),
        start_index_map: Dims::from_slice(&[0]),
        index_vector_dim: 1,
        ..Default::default()
    };
    let batched = GatherDimensionNumbers {
        collapsed_slice_dims: Dims::from_slice(&[1]),
        operand_batching_dims: Dims::from_slice(&[0]),
        start_indices_batching_dims: Dims::from_slice(&[0]),
        start_index_map: Dims::from_slice(&[1]),
        index_vector_dim: 2,
        ..Default::default()
    };
    let scattered_rows = ScatterDimensionNumbers {
        update_window_dims: Dims::from_slice(&[1]),
        inserted_window_dims: Dims::from_slice(&[0]),
        scatter_dims_to_operand_dims: Dims::from_slice(&[0]),
        index_vector_dim: 1,
        ..Default::default()
    };
    let scattered_batches = ScatterDimensionNumbers {
        inserted_window_dims: Dims::from_slice(&[1]),
        input_batching_dims: Dims::from_slice(&[0]),
        scatter_indices_batching_dims: Dims::from_slice(&[0]),
        scatter_dims_to_operand_dims: Dims::from_slice(&[1]),
        index_vector_dim: 2,
        ..Default::default()
    };
    let types = [tensor(F32, &[5, 3]), tensor(S64, &[4, 1]), tensor(S32, &[5, 2])];
    vec![
        (
            "gather",
            module("gather", &types, |b, v| {
                Ok(vec![
                    b.gather(v[0], v[1], &rows, &[1, 3], true)?,
                    b.gather(v[0], v[2], &batched, &[1, 1], false)?,
                ])
            }),
        ),
        (
            "scatter",
            module("scatter", &types, |b, v| {
                let (rows, columns) = (b.splat(F32, &[4, 3], 1.0)?, b.splat(F32, &[5, 2], 2.0)?);
                let flags = ScatterFlags { unique_indices: true, ..Default::default() };
                let mut results =
                    b.scatter(&[v[0]], v[1], &[rows], &scattered_rows, ScatterFlags::default(), |b, a| {
                        Ok(vec![b.add(a[0], a[1])?])
                    })?;
                results.extend(
                    b.scatter(&[v[0]], v[2], &[columns], &scattered_batches, flags, |_, a| Ok(vec![a[1]]))?,
                );
                Ok(results)
            }),
        ),
    ]
}

fn control() -> Vec<(&'static str, Module)> {
    let f = tensor(F32, &[2]);
    vec![
        (
            "while",
            module("while", &[f.clone(), tensor(S32, &[])], |b, v| {
                let zero = b.zero(S32)?;
                b.while_loop(
                    &[zero, v[0]],
                    // The bound and the increment come from outside the regions.
                    |b, a| b.compare(a[0], v[1], Direction::Lt),
                    |b, a| {
                        let one = b.one(S32)?;
                        Ok(vec![b.add(a[0], one)?, b.add(a[1], v[0])?])
                    },
                )
            }),
        ),
        (
            "branches",
            module("branches", &[f, tensor(Pred, &[]), tensor(S32, &[])], |b, v| {
                let mut results =
                    b.if_else(v[1], |b| Ok(vec![b.negate(v[0])?]), |b| Ok(vec![b.add(v[0], v[0])?]))?;
                results.extend(b.case(
                    v[2],
                    vec![
                        Box::new(|_: &mut Builder| Ok(vec![v[0]])),
                        Box::new(|b: &mut Builder| Ok(vec![b.sine(v[0])?])),
                        Box::new(|b: &mut Builder| Ok(vec![b.splat(F32, &[2], 0.5)?])),
                    ],
                )?);
                Ok(results)
            }),
        ),
        (
            "captured_constant",
            module("captured_constant", &[tensor(F32, &[4])], |b, v| {
                let (zero, half) = (b.zero(F32)?, b.constant_f64(F32, 0.5)?);
                b.reduce(&[v[0]], &[zero], &[0], |b, a| {
                    let scaled = b.multiply(a[1], half)?;
                    Ok(vec![b.add(a[0], scaled)?])
                })
            }),
        ),
    ]
}

fn others() -> Vec<(&'static str, Module)> {
    vec![
        (
            "random",
            module("random", &[tensor(U64, &[2])], |b, v| {
                let (state, bits) = b.rng_bit_generator(v[0], RngAlgorithm::Philox, tensor(U32, &[8]))?;
                let (state, more) =
                    b.rng_bit_generator(state, RngAlgorithm::ThreeFry, tensor(U64, &[2, 2]))?;
                Ok(vec![state, bits, more])
            }),
        ),
        (
            "barrier",
            module("barrier", &[tensor(F32, &[2]), tensor(S32, &[])], |b, v| b.optimization_barrier(v)),
        ),
        ("donation", {
            let mut b = Builder::new("with space");
            let (x, y) = (b.parameter(tensor(F32, &[2])), b.parameter(tensor(F32, &[2])));
            b.alias(0, 1);
            b.donate(1);
            let sum = b.add(x, y).unwrap();
            b.finish(&[y, sum]).unwrap()
        }),
    ]
}
