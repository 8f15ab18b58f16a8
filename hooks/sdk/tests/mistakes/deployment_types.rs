//! Types that are no request, no response and no service.

use tracer_sdk::serve::{Body, Request, Response, deployment};

#[deployment]
async fn takes_a_number(number: u64) -> Response<Body> {
    Response::new(Body::from(number.to_string()))
}

#[deployment]
async fn returns_a_number(request: Request<Body>) -> u64 {
    1
}

#[deployment]
fn returns_no_service() -> u64 {
    1
}

#[deployment]
async fn keeps_what_is_not_send(request: Request<Body>) -> String {
    let shared = std::rc::Rc::new(1);
    std::future::ready(()).await;
    shared.to_string()
}

fn main() {}
