// Requests to the gateway that serves this page. Credentials are a header, never a part of a URL.

const PATIENCE = 15000; // milliseconds

// The gateway didn't answer.
export class Lost extends Error {}

// The gateway answered with an error; `status` is that of HTTP.
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export class Gateway {
  #authorization = null;

  signIn(policy, key) {
    const text = new TextEncoder().encode(`${policy}:${key}`);
    this.#authorization = `Basic ${btoa(String.fromCharCode(...text))}`;
  }

  useToken(token) {
    this.#authorization = token;
  }

  async get(path, patience = PATIENCE) {
    return (await this.#ask(path, {}, AbortSignal.timeout(patience))).json();
  }

  async post(path, value, patience = PATIENCE) {
    const options = { method: "POST", body: JSON.stringify(value) };
    return (await this.#ask(path, options, AbortSignal.timeout(patience))).json();
  }

  // Yields each event as [name, fields], first the last `recent` ones, until the stream ends.
  async *events(recent, lastId) {
    const options = lastId.value ? { headers: { "Last-Event-ID": lastId.value } } : {};
    const response = await this.#ask(`/events?recent=${recent}`, options);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const fields = new Map(block.split("\n").map((line) => {
            const colon = line.indexOf(":");
            return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
          }));
          if (fields.has("id")) lastId.value = fields.get("id");
          if (fields.has("data")) yield [fields.get("event"), JSON.parse(fields.get("data"))];
        }
      }
    } catch {
      throw new Lost("the stream of events broke");
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  async #ask(path, options, signal) {
    const headers = { ...options.headers };
    if (options.method) headers["Content-Type"] = "application/json";
    if (this.#authorization) headers.Authorization = this.#authorization;
    let response;
    try {
      // Without credentials of the browser's own: it doesn't ask for a password in a window of its own.
      response = await fetch(path, { ...options, headers, signal, credentials: "omit", cache: "no-store" });
    } catch {
      throw new Lost("it doesn't answer"); // the browser doesn't tell why
    }
    if (response.ok) return response;
    const text = await response.text().catch(() => "");
    throw new Refused(response.status, errorOf(text) || `status ${response.status}`);
  }
}

function errorOf(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return text;
  }
}
