// Browsers refuse workers on pages that are opened from the disk. The search then runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      frame.addEventListener("load", () => this.connect(frame.contentWindow, url), { once: true });
      document.documentElement.appendChild(frame);
    }

    connect(scope, url) {
      scope.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      const script = scope.document.createElement("script");
      script.onload = () => {
        this.scope = scope;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.src = url;
      scope.document.head.appendChild(script);
    }

    postMessage(data) {
      if (this.scope) this.scope.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {}
  };
}
