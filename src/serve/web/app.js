"use strict";
// The chat page: no framework, no build step, nothing from elsewhere.

const $ = (id) => document.getElementById(id);
const fields = $("fields").elements;
const defaults = { system: "", temperature: 0.7, top_p: 0.95, top_k: 0, min_p: 0.05, repetition_penalty: 1.1,
                   max_tokens: 512, seed: "", theme: "", key: "" };
let messages = [];   // {role, content}: what the model sees
let running = null;  // the AbortController of the reply that streams
let model = null;    // its entry of /v1/models

// Settings live in the browser.

function loadSettings() {
  let saved = {};
  try { saved = JSON.parse(localStorage.getItem("quatrain") || "{}"); } catch { /* unreadable: the defaults */ }
  for (const [name, value] of Object.entries({ ...defaults, ...saved }))
    if (fields[name]) fields[name].value = value;
  applyTheme();
}

function saveSettings() {
  const saved = {};
  for (const name of Object.keys(defaults)) saved[name] = fields[name].value;
  localStorage.setItem("quatrain", JSON.stringify(saved));
  applyTheme();
}

function applyTheme() {
  const theme = fields.theme.value;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function headers() {
  const key = fields.key.value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer " + key } : {}) };
}

function sampling() {
  const body = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"])
    if (fields[name].value !== "") body[name] = Number(fields[name].value);
  return body;
}

// The model's facts.

const grouped = (n) => n.toLocaleString("en");
const bytes = (n) => (n >= 1e9 ? (n / 1e9).toFixed(2) + " GB" : (n / 1e6).toFixed(1) + " MB");

async function loadModel() {
  const answer = await fetch("v1/models", { headers: headers() });
  if (answer.status === 401) {
    status("This server asks for an API key: enter it in the settings.");
    showSettings(true);
    fields.key.focus();
    return;
  }
  if (!answer.ok) throw new Error("the server answered " + answer.status);
  model = (await answer.json()).data[0];
  status("");
  $("model").textContent = model.id;
  document.title = model.id + " · Quatrain";
  const meta = model.meta;
  const facts = {
    Architecture: meta.architecture, Parameters: grouped(meta.parameters), Layers: meta.layers,
    Hidden: grouped(meta.hidden), "Heads (KV)": `${meta.heads} (${meta.kv_heads})`,
    Vocabulary: grouped(meta.vocabulary), Context: grouped(model.max_model_len) + " tokens",
    "Read per token": bytes(meta.weight_bytes_per_token), Threads: meta.threads,
  };
  $("facts").replaceChildren(...Object.entries(facts).flatMap(([name, value]) => {
    const term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    return [term, text];
  }));
  if (!meta.chat) $("empty").textContent = "This model has no chat template: it continues your text.";
}

// Text with code and emphasis, as nodes: nothing of a reply is ever read as HTML.

function render(text) {
  const nodes = [];
  text.split("```").forEach((part, index) => {
    if (index % 2 === 0) return nodes.push(...inline(part));
    const pre = document.createElement("pre"), code = document.createElement("code");
    code.textContent = part.replace(/^[\w+#.-]*\n/, "").replace(/\n$/, "");
    pre.append(code);
    nodes.push(pre);
  });
  return nodes;
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).filter(Boolean).map((part) => {
    const tag = part.length > 2 && part.startsWith("`") ? "code" : part.length > 4 && part.startsWith("**") ? "strong" : "";
    if (!tag) return part;
    const node = document.createElement(tag);
    const marks = tag === "code" ? 1 : 2;
    node.textContent = part.slice(marks, -marks);
    return node;
  });
}

function addMessage(role, text) {
  $("empty").hidden = true;
  const article = document.createElement("article"), body = document.createElement("div");
  article.className = role;
  article.setAttribute("aria-label", role === "user" ? "You" : "Model");
  body.className = "body";
  body.append(...render(text));
  article.append(body);
  $("messages").append(article);
  scrollDown(true);
  return article;
}

function scrollDown(always) {
  const chat = $("chat");
  if (always || chat.scrollHeight - chat.scrollTop - chat.clientHeight < 120) chat.scrollTop = chat.scrollHeight;
}

function addFoot(article, text, speed) {
  const foot = document.createElement("div");
  foot.className = "foot quiet";
  const copy = document.createElement("button"), again = document.createElement("button");
  copy.type = again.type = "button";
  copy.textContent = "Copy";
  copy.hidden = !navigator.clipboard;  // browsers keep it from plain-HTTP pages of other machines
  copy.onclick = async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  };
  again.textContent = "Try again";
  again.className = "again";
  again.onclick = () => {
    if (running || messages.at(-1)?.role !== "assistant") return;
    messages.pop();
    article.remove();
    reply();
  };
  const figures = document.createElement("span");
  figures.textContent = speed;
  foot.append(figures, copy, again);
  document.querySelectorAll(".again").forEach((button) => button.remove());  // only the last can be redone
  article.append(foot);
}

function status(text) { $("status").textContent = text; }

// Server-sent events of a response, as they come.

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

async function reply() {
  const controller = running = new AbortController();
  const conversation = messages;  // a new chat may begin before this reply ends
  $("send").textContent = "Stop";
  const article = addMessage("assistant", "");
  const body = article.firstChild;
  body.classList.add("waiting");
  let text = "", tokens = 0, first = 0, failure = "";
  const started = performance.now();
  const speed = () => {
    const seconds = (performance.now() - first) / 1000;
    return tokens > 1 ? `${tokens} tokens, ${((tokens - 1) / seconds).toFixed(1)} tokens/s, first after ${((first - started) / 1000).toFixed(2)} s` : "";
  };
  try {
    const system = fields.system.value.trim();
    const chat = model ? model.meta.chat : true;
    const request = chat
      ? { messages: [...(system ? [{ role: "system", content: system }] : []), ...messages] }
      : { prompt: messages.at(-1).content };
    const response = await fetch(chat ? "v1/chat/completions" : "v1/completions", {
      method: "POST", headers: headers(), signal: controller.signal,
      body: JSON.stringify({ ...request, ...sampling(), stream: true, stream_options: { include_usage: true } }),
    });
    if (!response.ok) throw new Error((await response.json()).error?.message ?? "the server answered " + response.status);
    let drawn = 0;
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const piece = event.choices[0]?.delta?.content ?? event.choices[0]?.text ?? "";
      if (event.usage) tokens = event.usage.completion_tokens;
      if (!piece) continue;
      if (!first) first = performance.now();
      if (!event.usage) tokens += 1;
      text += piece;
      if (performance.now() - drawn < 40) continue;  // a redraw a frame or two, however fast the tokens come
      drawn = performance.now();
      body.replaceChildren(...render(text));
      status(speed());
      scrollDown(false);
    }
  } catch (error) {
    if (error.name !== "AbortError") failure = error.message;
  }
  running = null;
  $("send").textContent = "Send";
  body.classList.remove("waiting");
  body.replaceChildren(...render(text));
  status("");
  if (failure) {
    article.classList.add("failed");
    body.append((text ? "\n" : "") + failure);
    if (!text) return scrollDown(false);
  }
  conversation.push({ role: "assistant", content: text });
  addFoot(article, text, speed());
  scrollDown(false);
}

function send() {
  const text = $("input").value.trim();
  if (!text || running) return;
  if (messages.at(-1)?.role === "user") messages.pop();  // the last one failed: this one replaces it
  $("input").value = "";
  grow();
  messages.push({ role: "user", content: text });
  addMessage("user", text);
  reply();
}

function stop() { running?.abort(); }

function newChat() {
  stop();
  messages = [];
  $("messages").replaceChildren();
  $("empty").hidden = false;
  $("input").focus();
}

function showSettings(open) {
  $("settings").hidden = !open;
  $("open-settings").setAttribute("aria-expanded", open);
}

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = input.scrollHeight + 2 + "px";
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) stop();
  else send();
});
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && $("input").value === "") {
    const last = messages.findLast((message) => message.role === "user");
    if (!last) return;
    event.preventDefault();
    $("input").value = last.content;
    grow();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (running) stop();
    else if (!$("settings").hidden) showSettings(false);
  }
  if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    newChat();
  }
});
$("new").addEventListener("click", newChat);
$("open-settings").addEventListener("click", () => showSettings($("settings").hidden));
$("fields").addEventListener("input", saveSettings);
$("fields").addEventListener("submit", (event) => event.preventDefault());
fields.key.addEventListener("change", () => loadModel().catch((error) => status(error.message)));
$("reset").addEventListener("click", () => {
  const key = fields.key.value;
  for (const [name, value] of Object.entries(defaults)) fields[name].value = value;
  fields.key.value = key;
  saveSettings();
});

loadSettings();
loadModel().catch((error) => status(error.message));
