//! Bindings for choosing ladders.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use streamlearn_scheduler::ladder::{Choice, Demand, Ladder};
use streamlearn_serve::curve::Curve;

/// The histogram of sizes, and the measured cost of buckets.
type DemandTuple = (Vec<(usize, u64)>, Vec<(usize, f64)>);

/// The histogram of sizes, and a cost for every size.
type Priced = (Vec<(usize, u64)>, Curve);

fn priced(demands: Vec<DemandTuple>) -> PyResult<Vec<Priced>> {
    if demands.is_empty() {
        return Err(PyValueError::new_err("cannot choose a ladder without demand"));
    }
    let curve = |costs| Curve::new(costs).map_err(PyValueError::new_err);
    demands.into_iter().map(|(histogram, costs)| Ok((histogram, curve(costs)?))).collect()
}

/// The best ladder with one bucket, with at most two, and so on, by exact dynamic programming.
#[pyfunction]
fn choose_ladders(
    py: Python<'_>,
    demands: Vec<DemandTuple>,
    top: usize,
    buckets_max: usize,
    multiple: usize,
) -> PyResult<Vec<Vec<usize>>> {
    if top == 0 || buckets_max == 0 || multiple == 0 {
        let message =
            format!("top {top}, buckets_max {buckets_max} and multiple {multiple} must all be at least 1");
        return Err(PyValueError::new_err(message));
    }
    let priced = priced(demands)?;
    Ok(py.detach(|| {
        let costs: Vec<_> = priced.iter().map(|(_, curve)| |size| curve.at(size)).collect();
        let demands = priced.iter().zip(&costs).map(|((histogram, _), cost)| Demand { histogram, cost });
        let choice = Choice { top, buckets_max, multiple };
        let ladders = Ladder::choices(&demands.collect::<Vec<_>>(), choice);
        ladders.iter().map(|ladder| ladder.sizes().to_vec()).collect()
    }))
}

/// The share of padding in a ladder's computation, and the mean cost of one execution.
#[pyfunction]
fn ladder_figures(sizes: Vec<usize>, demands: Vec<DemandTuple>) -> PyResult<(f64, f64)> {
    let ladder = Ladder::new(sizes).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let (mut all, mut cost, mut count) = (Vec::new(), 0.0, 0_u64);
    for (histogram, curve) in priced(demands)? {
        cost += ladder.cost(&Demand { histogram: &histogram, cost: &|size| curve.at(size) });
        count += histogram.iter().map(|(_, count)| count).sum::<u64>();
        all.extend(histogram);
    }
    Ok((ladder.waste(&all), if count == 0 { 0.0 } else { cost / count as f64 }))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(choose_ladders, module)?)?;
    module.add_function(wrap_pyfunction!(ladder_figures, module)?)
}
