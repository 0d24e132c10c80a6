// What outlives a reload, but not the browser's tab: the key, the parameters, the conversation.

export const kept = { key: "", parameters: {}, messages: [], ...JSON.parse(sessionStorage.getItem("kt") ?? "{}") };

/** Write `kept`. A conversation too long for the browser's store is kept in this page alone. */
export function keep() {
  try {
    sessionStorage.setItem("kt", JSON.stringify(kept));
  } catch {
    sessionStorage.setItem("kt", JSON.stringify({ ...kept, messages: [] }));
  }
}
