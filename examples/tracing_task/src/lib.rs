//! A task written against the `tracing` crate, as most Rust code is that was there before anyone thought of running it
//! here. `#[instrument]` makes the spans, and `info!` log records and the events on them; the SDK's default subscriber
//! hands all of them on. `RUST_LOG` sets the level, `info` unless it says otherwise.
//!
//! ```text
//! $ cargo build -p tracing_task
//! $ export TRACER_MODULE_PATH=$PWD/target/debug
//! $ tracer submit task tracing_task:price_order '{"customer":"ada","items":[{"name":"tea","price":450,"quantity":2}]}'
//! {"customer":"ada","items":2,"total":900}
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};
use tracer_sdk::task;
use tracing::{debug, info, instrument, warn};

/// Items that a customer wants to buy.
#[derive(Debug, Deserialize)]
struct Order {
    customer: String,
    items: Vec<Item>,
}

/// One line of an order.
#[derive(Debug, Deserialize)]
struct Item {
    name: String,
    /// In cents.
    price: u64,
    quantity: u32,
}

/// Prices of an order's items, and their sum.
#[derive(Debug, PartialEq, Serialize)]
struct Bill {
    customer: String,
    items: u32,
    /// In cents.
    total: u64,
}

/// Reason why an order cannot be priced.
#[derive(Debug, PartialEq)]
enum OrderError {
    Empty,
    TooLarge { item: String },
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrderError::Empty => f.write_str("the order has no items"),
            OrderError::TooLarge { item } => write!(f, "the order costs too much to count, from item `{item}` on"),
        }
    }
}

impl std::error::Error for OrderError {}

/// Prices an order, given as an object with `customer` and `items`; every item has `name`, `price` and `quantity`.
#[task]
fn price_order(order: Order) -> Result<Bill, OrderError> {
    info!(customer = %order.customer, "pricing");
    if order.items.is_empty() {
        warn!("nothing to price");
        return Err(OrderError::Empty);
    }
    let mut total = 0_u64;
    for item in &order.items {
        let sum = price_item(item)?;
        total = total.checked_add(sum).ok_or_else(|| OrderError::TooLarge { item: item.name.clone() })?;
    }
    let items = order.items.iter().map(|item| item.quantity).sum();
    Ok(Bill { customer: order.customer, items, total })
}

/// The price of one line, with ten percent off from a dozen on.
#[instrument(skip_all, fields(item.name = %item.name, item.quantity = i64::from(item.quantity)), err)]
fn price_item(item: &Item) -> Result<u64, OrderError> {
    let full = item.price.checked_mul(item.quantity.into());
    let full = full.ok_or_else(|| OrderError::TooLarge { item: item.name.clone() })?;
    let off = if item.quantity >= 12 { full / 10 } else { 0 };
    debug!(full, off, "priced");
    Ok(full - off)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(price: u64, quantity: u32) -> Item {
        Item { name: "tea".to_owned(), price, quantity }
    }

    fn order(items: Vec<Item>) -> Order {
        Order { customer: "ada".to_owned(), items }
    }

    #[test]
    fn a_dozen_costs_ten_percent_less() {
        let bill = price_order(order(vec![item(100, 2), item(10, 12)])).expect("it can be priced");
        assert_eq!(bill, Bill { customer: "ada".to_owned(), items: 14, total: 308 });
    }

    #[test]
    fn orders_that_cannot_be_priced_say_why() {
        assert_eq!(price_order(order(vec![])), Err(OrderError::Empty));
        let error = price_order(order(vec![item(u64::MAX, 2)])).expect_err("it overflows");
        assert_eq!(error.to_string(), "the order costs too much to count, from item `tea` on");
    }
}
