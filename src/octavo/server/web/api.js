// The server's HTTP API: requests with the API key, readable errors, and server-sent events.

const KEY = "octavo.api_key";

export const getApiKey = () => sessionStorage.getItem(KEY) ?? "";

export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** What the server said was wrong; `status` is 0 when it could not be reached. */
export class ApiError extends Error {
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** The response of a request that went well. `body` is sent as JSON. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  const key = getApiKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?", 0);
  }
  if (!response.ok) throw await readError(response);
  return response;
}

export const getJson = async (path, options) => (await call(path, options)).json();

async function readError(response) {
  let told = null;
  try {
    told = (await response.json()).error ?? null;
  } catch {
    // Not ours, such as a proxy's page: the status has to do.
  }
  const message = told?.message ?? `The server answered with status ${response.status}.`;
  if (response.status === 401) return new ApiError(`${message} Enter the API key in the settings.`, 401);
  if (response.status === 429) {
    const wait = response.headers.get("retry-after");
    return new ApiError(wait ? `${message} Try again in ${wait} s.` : message, 429);
  }
  return new ApiError(message, response.status, told?.param ?? null);
}

/** The data of each event of a response, as text, until its end. Comments and other fields are passed over. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // an aborted stream cannot be cancelled again
  }
}
