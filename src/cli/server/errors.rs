//! Errors that are no row's: of HTTP, of keys, of a server that is full. In the form of the API
//! that is asked.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::guard;

/// What is wrong with a request before it is read as a row.
#[derive(Debug)]
pub(crate) struct HttpError {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) param: Option<&'static str>,
}

impl HttpError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), param: None }
    }

    /// The request is wrong.
    pub(crate) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A field is wrong: what it should have been.
    pub(crate) fn expected(param: &'static str, what: &str) -> Self {
        Self::bad("invalid_parameter", format!("{param}: expected {what}")).of_param(param)
    }

    pub(crate) fn of_param(self, param: &'static str) -> Self {
        Self { param: Some(param), ..self }
    }

    /// The engine has ended.
    pub(crate) fn dead() -> Self {
        Self::of_engine("engine", "the engine has stopped")
    }

    /// The engine did not answer as it was asked.
    pub(crate) fn of_engine(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code, message)
    }

    /// The body, in the form of Anthropic's API or of OpenAI's.
    pub(crate) fn body(&self, is_anthropics: bool) -> Value {
        match is_anthropics {
            true => json!({
                "type": "error",
                "error": {"type": self.anthropic_type(), "message": self.message},
            }),
            false => json!({"error": {
                "message": self.message,
                "type": self.openai_type(),
                "param": self.param,
                "code": self.code,
            }}),
        }
    }

    /// The response, in the form of the path's API.
    pub(crate) fn response(&self, path: &str) -> Response<Body> {
        let body = self.body(guard::is_anthropics(path));
        let mut response = json_response(self.status, body.to_string());
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        }
    }
}

/// A response of JSON.
pub(crate) fn json_response(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
