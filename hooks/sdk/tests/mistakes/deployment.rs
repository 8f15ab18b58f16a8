//! Deployments that cannot be.

use tracer_sdk::serve::{Body, Request, StatusCode, deployment};

#[deployment]
async fn without_a_request() -> StatusCode {
    StatusCode::OK
}

#[deployment]
async fn with_two(request: Request<Body>, more: u8) -> StatusCode {
    StatusCode::OK
}

#[deployment]
fn returns_nothing() {}

#[deployment(max_requests = 3)]
async fn with_an_unknown_setting(request: Request<Body>) {}

#[deployment(max_ongoing_requests = 0)]
async fn with_a_limit_of_nothing(request: Request<Body>) {}

#[deployment]
async fn generic<T>(request: Request<T>) {}

pub struct WithoutNew;

#[deployment]
impl WithoutNew {
    pub async fn handle(&self, request: Request<Body>) {}
}

pub struct WithoutHandle;

#[deployment]
impl WithoutHandle {
    pub fn new() -> Self {
        WithoutHandle
    }
}

pub struct Wrong;

#[deployment]
impl Wrong {
    pub fn new() -> Self {
        Wrong
    }

    pub fn handle(&mut self, request: Request<Body>) {}

    pub async fn health(&self, what: u8) {}

    pub async fn reconfigure(&self) {}
}

#[deployment]
struct NotCode;

fn main() {}
