;;; The egg over TCP and over string ports: both ends in one process, and byte streams that break the rules.

(import scheme (chicken base) (chicken condition) (chicken fixnum) (chicken file) (chicken file posix) (chicken foreign) (chicken format) (chicken gc)
        (chicken io) (chicken port)
        (chicken process-context) (chicken string) (chicken tcp) (chicken time) (srfi 4) wireloom)

(define failures 0)
(define checks 0)

(define-syntax check
  (syntax-rules ()
    ((_ expected expression)
     (let ((wanted expected)
           (got (handle-exceptions exn (list 'exception (get-condition-property exn 'exn 'message #f))
                  expression)))
       (set! checks (+ checks 1))
       (unless (equal? wanted got)
         (set! failures (+ failures 1))
         (print "FAILED: " 'expression)
         (print "  expected " (short wanted))
         (print "  got      " (short got)))))))

(define (short value)
  (let ((text (sprintf "~S" value)))
    (if (> (string-length text) 200) (string-append (substring text 0 200) "...") text)))

;;; Threads from what the scheduler has; the egg srfi-18 makes the same.

(define (in-thread thunk)
  (let ((thread (##sys#make-thread #f 'created 'test (##sys#slot ##sys#current-thread 9))))
    (##sys#setslot thread 1
                   (lambda ()
                     (handle-exceptions exn (##sys#setslot thread 7 exn) (##sys#setslot thread 2 (list (thunk))))
                     (##sys#thread-kill! thread 'dead)
                     (##sys#schedule)))
    (##sys#setslot thread 3 'ready)
    (##sys#add-to-ready-queue thread)
    thread))

(define (pause ms)
  (##sys#thread-block-for-timeout! ##sys#current-thread (+ (exact->inexact (current-process-milliseconds)) ms))
  (##sys#thread-yield!))

(define (wait-until condition)
  (let loop ((left 3000))
    (cond ((condition) #t)
          ((= left 0) #f)
          (else (pause 10) (loop (- left 1))))))

(define (ended? thread) (memq (##sys#slot thread 3) '(dead terminated)))

(define (wait-for thread)
  (unless (wait-until (lambda () (ended? thread))) (error "a thread hangs"))
  (and (pair? (##sys#slot thread 2)) (car (##sys#slot thread 2))))

;; As thread-terminate! of srfi-18 does.
(define (kill thread)
  (when (eq? (##sys#slot thread 3) 'blocked) (##sys#thread-unblock! thread))
  (##sys#thread-kill! thread 'terminated)
  (##sys#setslot thread 1 (lambda () (##sys#schedule))))

;;; One connection: `server` runs on the ports of one end, `client` on those of the other; both results.

(define listener (tcp-listen 0 16 "127.0.0.1"))
(define port (tcp-listener-port listener))
(define uri (sprintf "ws://127.0.0.1:~A/path?query" port))

(define (both server client)
  (let* ((thread (in-thread (lambda () (receive (in out) (tcp-accept listener) (server in out)))))
         (result (handle-exceptions exn (list 'exception exn) (client))))
    (list (wait-for thread) result)))

;; Beside a peer that sends a request and `frames`, and then nothing until `serve` has ended.
(define (beside-silent-peer serve . frames)
  (define has-ended #f)
  (both (lambda (in out) (dynamic-wind void (lambda () (serve in out)) (lambda () (set! has-ended #t))))
        (lambda ()
          (receive (in out) (tcp-connect "127.0.0.1" port)
            (write-string request #f out)
            (for-each (lambda (frame) (write-string frame #f out)) frames)
            (flush-output out)
            (wait-until (lambda () has-ended))
            (close-input-port in)
            (close-output-port out)
            'silent))))

(define (echo)
  (let loop ((count 0))
    (receive (message type) (receive-message)
      (cond ((memq type '(text binary)) (send-message message type) (loop (+ count 1)))
            (else (list count type))))))

(define (echo-on in out) (with-websocket echo in out))

(define (repeat text count)
  (cond ((= count 0) "")
        ((even? count) (let ((half (repeat text (quotient count 2)))) (string-append half half)))
        (else (string-append text (repeat text (- count 1))))))

(ping-interval 0)
(connection-timeout 30)
(max-frame-size (* 64 1024 1024))
(max-message-size (* 64 1024 1024))

(define words "a\u00e9\u20ac\U0001F600")        ; one to four bytes a character: ten together

;; Other ports over those of a socket.
(define (not-a-socket-in in)
  (make-input-port (lambda () (read-char in)) (lambda () (char-ready? in)) (lambda () (close-input-port in))))
(define (not-a-socket-out out)
  (make-output-port (lambda (text) (write-string text #f out) (flush-output out)) (lambda () (close-output-port out))))

;;; Echo of all sizes, with and without compression

(for-each
 (lambda (deflate)
   (parameterize ((permessage-deflate deflate))
     (check `((,(* 2 7) connection-close) ok)
            (both echo-on
                  (lambda ()
                    (with-client-websocket
                     uri
                     (lambda ()
                       (check deflate (websocket-compressed? (current-websocket)))
                       (for-each
                        (lambda (count)
                          (let ((text (repeat words count)))
                            (for-each
                             (lambda (type)
                               (send-message text type)
                               (receive (message got) (receive-message)
                                 (check #t (string=? text message))
                                 (check type got)))
                             '(text binary))))
                        '(0 1 12 13 6553 6554 300000))
                       'ok)))))))
 '(#f #t))

;; u8vectors are bytes.
(check '((1 connection-close) #(1 0 255))
       (both echo-on
             (lambda ()
               (with-client-websocket
                uri
                (lambda ()
                  (send-message (u8vector 1 0 255) 'binary)
                  (receive (message type) (receive-message)
                    (list->vector (map char->integer (string->list message)))))))))

;; Many messages before the first is read.
(check '((500 connection-close) 500)
       (both echo-on
             (lambda ()
               (with-client-websocket
                uri
                (lambda ()
                  (let send ((n 0)) (when (< n 500) (send-message (number->string n)) (send (+ n 1))))
                  (let loop ((n 0))
                    (if (= n 500)
                        n
                        (receive (message type) (receive-message)
                          (if (string=? message (number->string n)) (loop (+ n 1)) n)))))))))

;; The request on the server; subprotocols.
(parameterize ((supported-subprotocols '("b" "a")))
  (check '(("/path?query" "a" "http://here") "a")
         (both (lambda (in out)
                 (with-websocket
                  (lambda ()
                    (let ((ws (current-websocket)))
                      (receive-message)
                      (list (websocket-resource ws) (websocket-subprotocol ws) (websocket-header ws "Origin"))))
                  in out))
               (lambda ()
                 (let* ((ws (websocket-connect uri origin: "http://here" subprotocol: "a"))
                        (subprotocol (websocket-subprotocol ws)))
                   (close-websocket ws)
                   subprotocol)))))

;; An origin that is not accepted.
(parameterize ((accept-connection (lambda (origin) (string=? origin "http://good"))))
  (check '(#f (websocket handshake-refused 403))
         (both echo-on
               (lambda ()
                 (condition-case (websocket-connect uri origin: "http://bad")
                   (exn (websocket handshake-refused)
                        `(websocket handshake-refused ,@(get-condition-property exn 'exn 'arguments))))))))

;; Close frames: code and reason.
(check '((#\x3 #\xe9 "bye") done)
       (both (lambda (in out)
               (with-websocket
                (lambda ()
                  (receive (payload type) (receive-message)
                    (list (string-ref payload 0) (string-ref payload 1) (substring payload 2))))
                in out))
             (lambda ()
               (let ((ws (websocket-connect uri)))
                 (close-websocket ws code: 1001 reason: "bye")
                 'done))))

;; After the end of a connection.
(check '(#f (eof connection-closed eof))
       (both (lambda (in out) (with-websocket void in out) #f)
             (lambda ()
               (let ((ws (websocket-connect uri)))
                 (let loop () (receive (message type) (receive-message ws) (unless (eof-object? message) (loop))))
                 (let ((first (if (eof-object? (receive-message ws)) 'eof 'more)))
                   (let ((sent (condition-case (begin (send-message "x" 'text ws) 'sent)
                                 ((websocket connection-closed) 'connection-closed))))
                     (close-websocket ws)
                     (list first sent (if (eof-object? (receive-message ws)) 'eof 'more))))))))

;;; Errors of the peer, over string ports

(define request
  (string-append "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"))

(define (bytes . numbers) (list->string (map integer->char numbers)))

(define (kind-of exn)
  (let loop ((kinds '(protocol-error invalid-data message-too-large unexpected-close connection-timeout invalid-handshake)))
    (cond ((null? kinds) 'other)
          (((condition-predicate (car kinds)) exn) (car kinds))
          (else (loop (cdr kinds))))))

;; The kind of the condition, and the code of the Close frame that was written.
(define (over-strings input #!optional (propagate #t))
  (let* ((out (open-output-string))
         (result (parameterize ((propagate-common-errors propagate))
                   (handle-exceptions exn (if ((condition-predicate 'websocket) exn) (kind-of exn) exn)
                     (with-websocket echo (open-input-string input) out))))
         (output (get-output-string out))
         (frames (substring-index "\r\n\r\n" output))
         (rest (if frames (substring output (+ frames 4)) output))
         (len (string-length rest)))
    (list result
          (and (>= len 4)
               (let ((at (let find ((at 0)) (cond ((> (+ at 4) len) #f) ((char=? (string-ref rest at) #\x88) at) (else (find (+ at 1)))))))
                 (and at (+ (* 256 (char->integer (string-ref rest (+ at 2)))) (char->integer (string-ref rest (+ at 3))))))))))

(define mask (bytes 0 0 0 0))
(define (frame first text) (string-append (bytes first (+ 128 (string-length text))) mask text))

(check '((1 connection-close) 1000)
       (over-strings (string-append request (frame #x81 "hi") (frame #x88 (bytes 3 232)))))
(check '(protocol-error 1002) (over-strings (string-append request (bytes #x83 #x80 0 0 0 0))))
(check '(protocol-error 1002) (over-strings (string-append request (bytes #x81 #x00)))) ; not masked
(check '(protocol-error 1002) (over-strings (string-append request (frame #x09 "") (frame #x88 (bytes 3)))))
(check '(invalid-data 1007) (over-strings (string-append request (frame #x81 (bytes #xff)))))
(check '(invalid-data 1007) (over-strings (string-append request (frame #x88 (bytes 3 232 #xff)))))
(parameterize ((max-message-size 100))
  (check '(message-too-large 1009) (over-strings (string-append request (frame #x81 (make-string 101 #\x)))))
  (check '((1 connection-close) 1000)
         (over-strings (string-append request (frame #x81 (make-string 100 #\x)) (frame #x88 (bytes 3 232))))))
(parameterize ((max-frame-size 10))
  (check '(message-too-large 1009) (over-strings (string-append request (frame #x81 (make-string 11 #\x))))))
;; The transport ends without a Close frame: reported once.
(check 'unexpected-close (car (over-strings (string-append request (frame #x81 "hi")))))
(check 'unexpected-close (car (over-strings (string-append request (substring (frame #x81 "hello") 0 5)))))
;; Common errors stay inside by default.
(check '(#f 1007) (over-strings (string-append request (frame #x81 (bytes #xff))) #f))
;; Not a handshake.
(check #t (symbol? (car (over-strings "POST / HTTP/1.1\r\n\r\n"))))
(check #t (symbol? (car (over-strings "GET / HTTP/1.1\r\nHost: h\r\n\r\n"))))
(check 'unexpected-close (car (over-strings (substring request 0 50))))
(check 'unexpected-close (car (over-strings "")))
;; Fragments with a Ping between them.
(check '((1 connection-close) 1000)
       (over-strings (string-append request (frame #x01 "a") (frame #x89 "p") (frame #x80 "b") (frame #x88 (bytes 3 232)))))

;; More follows the Close frame, and is sent before anything is read: nothing that the server has sent is lost.
(let ((message (string-append (bytes #x82 254 16 0 0 0 0 0) (make-string 4096 #\x))))
  (check `((60 connection-close) ,(+ (* 60 (+ 4 4096)) 4))
         (both echo-on
               (lambda ()
                 (receive (in out) (tcp-connect "127.0.0.1" port)
                   (write-string (string-append request (repeat message 60) (frame #x88 (bytes 3 232)) (make-string 262144 #\x)) #f out)
                   (flush-output out)
                   (let ((output (read-string #f in)))
                     (close-input-port in)
                     (close-output-port out)
                     (- (string-length output) (+ 4 (substring-index "\r\n\r\n" output)))))))))

;;; Arguments

(let ((ws (receive (in out) (values (open-input-string request) (open-output-string)) (websocket-accept in out))))
  (check 'invalid-optype (condition-case (send-message "x" 'nothing ws) ((websocket invalid-optype) 'invalid-optype)))
  (check 'type (condition-case (send-message 42 'text ws) ((exn type) 'type)))
  (check 'type (condition-case (receive-message 42) ((exn type) 'type)))
  (check 'type (condition-case (send-message "x") ((exn type) 'type)))
  (check 'invalid-data (condition-case (send-message (bytes 255) 'text ws) ((websocket invalid-data) 'invalid-data)))
  (check 'invalid-data (condition-case (send-message (make-string 126 #\x) 'ping ws) ((websocket invalid-data) 'invalid-data)))
  (close-websocket ws)
  (close-websocket ws))
(check 'invalid-handshake
       (condition-case (websocket-client (open-input-string "") (open-output-string) "a b" "/") ((websocket invalid-handshake) 'invalid-handshake)))
(for-each
 (lambda (uri) (check 'invalid-uri (condition-case (websocket-connect uri) ((websocket invalid-uri) 'invalid-uri))))
 '("http://x" "ws://127.0.0.1:80x/" "ws://127.0.0.1:65536/" "ws://127.0.0.1:-1" "ws://127.0.0.1:+80"))
;; RFC 6455 section 3: a query may follow the authority, and the scheme has any case.
(check '("/?a=/b:1" ok)
       (both (lambda (in out) (with-websocket (lambda () (websocket-resource (current-websocket))) in out))
             (lambda () (with-client-websocket (sprintf "WS://127.0.0.1:~A?a=/b:1" port) (lambda () 'ok)))))

;;; Exceptions in handlers: the peer gets 1011, the application its exception

(check '((raised "on purpose") (3 243))
       (both (lambda (in out)
               (condition-case (with-websocket (lambda () (receive-message) (error "on purpose")) in out)
                 (exn (exn) (list 'raised (get-condition-property exn 'exn 'message)))))
             (lambda ()
               (let ((ws (websocket-connect uri)))
                 (send-message "x" 'text ws)
                 (receive (payload type) (receive-message ws)
                   (close-websocket ws)
                   (map char->integer (string->list (substring payload 0 2))))))))

;; An escape out of the handler closes the connection and its ports.
(check '((escaped #t #t) connection-close)
       (both (lambda (in out)
               (let ((result (call/cc (lambda (return) (with-websocket (lambda () (return 'escaped)) in out)))))
                 (list result (port-closed? in) (port-closed? out))))
             (lambda ()
               (let ((ws (websocket-connect uri)))
                 (receive (payload type) (receive-message ws)
                   (close-websocket ws)
                   type)))))

;;; Concurrent

(check '((100 connection-close) 100)
       (both (lambda (in out) (with-concurrent-websocket echo in out))
             (lambda ()
               (with-client-websocket
                uri
                (lambda ()
                  (let loop ((n 0))
                    (if (< n 100)
                        (begin
                          (send-message (number->string n))
                          (receive (message type) (receive-message) (loop (+ n 1))))
                        n)))))))

;; Senders in several threads: no frame is torn.
(check '((300 connection-close) 300)
       (both echo-on
             (lambda ()
               (with-client-websocket
                uri
                (lambda ()
                  (let* ((ws (current-websocket))
                         (text (make-string 30000 #\x))
                         (threads (map (lambda (_)
                                         (in-thread (lambda ()
                                                      (let loop ((n 0)) (when (< n 100) (send-message text 'text ws) (loop (+ n 1)))))))
                                       '(1 2 3))))
                    (let loop ((n 0))
                      (if (< n 300)
                          (receive (message type) (receive-message) (if (string=? message text) (loop (+ n 1)) n))
                          (begin (for-each wait-for threads) n)))))))))

;; A receiver that is killed while it waits does not take the next message with it.
(check '((1 connection-close) "after")
       (both echo-on
             (lambda ()
               (with-client-websocket
                uri
                (lambda ()
                  (let* ((ws (current-websocket))
                         (victim (in-thread (lambda () (receive-message ws)))))
                    (pause 20)
                    (kill victim)
                    (pause 20)
                    (send-message "after")
                    (receive (message type) (receive-message) message)))))))

;; The end of a session ends its reader, also one that waits for a receiver.
(let ((readers (lambda ()
                 (let loop ((threads (##sys#all-threads)) (count 0))
                   (cond ((null? threads) count)
                         ((eq? (##sys#slot (car threads) 6) 'wireloom-reader) (loop (cdr threads) (+ count 1)))
                         (else (loop (cdr threads) count)))))))
  (for-each
   (lambda (body)
     (let ((counted -1))
       (check '(left done)
              (both (lambda (in out)
                      (handle-exceptions exn 'left
                        (with-concurrent-websocket (lambda () (set! counted (readers)) (body)) in out)))
                    (lambda ()
                      (let ((ws (websocket-connect uri)))
                        (let loop ((n 0))
                          (when (< n 200)
                            (handle-exceptions exn #f (send-message (make-string 1000 #\x) 'text ws))
                            (loop (+ n 1))))
                        (handle-exceptions exn #f (close-websocket ws))
                        'done))))
       (check #t (> counted 0))
       (check #t (wait-until (lambda () (= (readers) 0))))))
   (list (lambda () (receive-message) (pause 200) 'left)
         (lambda () (receive-message) (pause 200) (error "left")))))

;; The queue of a receiver is bounded in bytes: a slow one leaves the rest to the peer.
(let* ((long (make-string 60000 #\x))
       (input (apply string-append request (map (lambda (n) (string-append (bytes #x81 #xfe 234 96) mask long)) '(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25))))
       (end (string-length input))
       (at 0)
       (in (make-input-port (lambda () (if (= at end) #!eof (begin (set! at (+ at 1)) (string-ref input (- at 1))))) (lambda () #t) void)))
  (with-concurrent-websocket
   (lambda ()
     (let settle ((before -1))
       (unless (= at before)
         (let ((seen at)) (pause 300) (settle seen))))
     (check #t (< at 1200000))
     (let loop ((left 25))
       (unless (= left 0)
         (check 60000 (receive (message type) (receive-message) (string-length message)))
         (loop (- left 1))))
     (check end at))
   in (open-output-string)))

;; A receiver that waits for long.
(check '((1 connection-close) "late")
       (both (lambda (in out) (with-concurrent-websocket echo in out))
             (lambda ()
               (let* ((ws (websocket-connect uri))
                      (out (open-output-string)))
                 (pause 450)
                 (send-message "late" 'text ws)
                 (receive (message type) (receive-message ws)
                   (close-websocket ws)
                   message)))))

;; Sockets that websocket-connect opened are closed, whether the server accepts or not.
(let ((open-files (lambda () (length (directory "/proc/self/fd")))))
  (when (directory-exists? "/proc/self/fd")
    (for-each
     (lambda (origin)
       (parameterize ((accept-connection (lambda (origin) (string=? origin "http://good"))))
         (let ((before (open-files)))
           (let loop ((n 0))
             (when (< n 10)
               (both echo-on
                     (lambda ()
                       (handle-exceptions exn #f (close-websocket (websocket-connect uri origin: origin)))))
               (loop (+ n 1))))
           (check before (open-files)))))
     '("http://good" "http://bad"))))

;; Also with a handler that returns, and with a websocket that is out of reach.
(let* ((open-files (lambda () (length (directory "/proc/self/fd"))))
       (before (open-files)))
  (when (directory-exists? "/proc/self/fd")
    (check 'none
           (cadr (both (lambda (in out) (close-input-port in) (close-output-port out))
                       (lambda () (with-exception-handler void (lambda () (or (websocket-connect uri) 'none)))))))
    (check before (open-files))
    (let ((thread (in-thread (lambda () (receive (in out) (tcp-accept listener) (echo-on in out))))))
      (let ((ws (websocket-connect uri)))
        (send-message "x" 'text ws)
        (receive-message ws))
      (check #t (and (wait-until (lambda () (gc #t) (ended? thread))) (= (open-files) before))))))

;; A code or reason that a Close frame cannot have is refused at once, and the connection stays open.
(check '((1 connection-close) (invalid-data invalid-data invalid-data invalid-data invalid-data "still open"))
       (both echo-on
             (lambda ()
               (with-client-websocket
                uri
                (lambda ()
                  (let* ((refused (lambda arguments
                                    (condition-case (begin (apply close-websocket (current-websocket) arguments) 'closed)
                                      ((websocket invalid-data) 'invalid-data))))
                         (results (list (refused reason: (make-string 200 #\a)) (refused code: 1005) (refused code: 5000) (refused code: 66536)
                                        (refused reason: (bytes 255)))))
                    (send-message "still open")
                    (receive (message type) (receive-message)
                      (append results (list message)))))))))

;; Numbers that C cannot convert: the error names the parameter.
(for-each
 (lambda (name parameter)
   (let ((before (parameter)))
     (for-each
      (lambda (value)
        (check (list 'refused name)
               (condition-case (begin (parameterize ((parameter value)) 'taken))
                 (exn (exn websocket invalid-parameters)
                      (list 'refused (car (string-split (get-condition-property exn 'exn 'message)))))))
        (check before (parameter)))
      '(-1 -0.5 +nan.0 +inf.0 -inf.0 1e30 100000000000000000000 "1" #f))
     (check '(0 1/2 1e9) (map (lambda (value) (parameterize ((parameter value)) (parameter))) '(0 1/2 1e9)))))
 '("ping-interval" "close-timeout" "connection-timeout" "max-frame-size" "max-message-size")
 (list ping-interval close-timeout connection-timeout max-frame-size max-message-size))

;; Parameters that no connection can have, which the server sees before it accepts; also a response that is longer than its buffer.
(define (accept-kind request)
  (let ((out (open-output-string)))
    (list (condition-case (websocket-accept (open-input-string request) out) ((websocket invalid-parameters) 'invalid-parameters))
          (get-output-string out))))
(let ((name (make-string 5000 #\x)))
  (parameterize ((supported-subprotocols (list name)))
    (check '(invalid-parameters "")
           (accept-kind (string-append (substring request 0 (- (string-length request) 2)) "Sec-WebSocket-Protocol: " name "\r\n\r\n")))))
(parameterize ((ping-interval 1e-10))
  (check '(invalid-parameters "") (accept-kind request))
  (check '(refused invalid-parameters)
         (both (lambda (in out) (handle-exceptions exn 'refused (parameterize ((ping-interval 0)) (with-websocket echo in out)) 'refused))
               (lambda ()
                 (condition-case (websocket-connect uri) ((websocket invalid-parameters) 'invalid-parameters))))))

;; A port that waits while it writes: another thread does not write into the middle of a frame.
(let* ((wire (open-output-string))
       (out (make-output-port
             (lambda (text)
               (let loop ((at 0))
                 (when (< at (string-length text))
                   (write-string (substring text at (min (string-length text) (+ at 20000))) #f wire)
                   (pause 5)
                   (loop (+ at 20000)))))
             void))
       (ws (websocket-accept (open-input-string request) out))
       (head (string-length (get-output-string wire)))
       (threads (map (lambda (letter)
                       (in-thread (lambda ()
                                    (let loop ((n 0))
                                      (when (< n 3) (send-message (make-string 100000 letter) 'text ws) (loop (+ n 1)))))))
                     '(#\a #\b #\c))))
  (for-each wait-for threads)
  (check #t (wait-until (lambda () (= (string-length (get-output-string wire)) (+ head (* 9 100010))))))
  (let ((text (get-output-string wire)))
    (let loop ((n 0))
      (when (< n 9)
        (let* ((at (+ head (* n 100010) 10))
               (payload (substring text at (+ at 100000))))
          (check #t (string=? payload (make-string 100000 (string-ref payload 0)))))
        (loop (+ n 1))))))

;; A queue that other threads have filled is waited for.
(check '(done #t)
       (parameterize ((permessage-deflate #f))
       (let* ((count 0)
              (begun 0)
              (thread (in-thread (lambda ()
                                   (receive (in out) (tcp-accept listener)
                                     (with-websocket
                                      (lambda ()
                                        (wait-until (lambda () (= begun 10)))
                                        (let loop ()
                                          (receive (message type) (receive-message)
                                            (when (eq? type 'binary) (set! count (+ count (string-length message))) (loop))))
                                        'done)
                                      in out)))))
              (ws (websocket-connect uri))
              (text (make-string (* 10 1024 1024) #\x))
              (senders (map (lambda (_) (in-thread (lambda () (set! begun (+ begun 1)) (send-message text 'binary ws) 'sent))) '(1 2 3 4 5 6 7 8 9 10))))
         (let ((sent (map wait-for senders)))
           (close-websocket ws)
           (list (wait-for thread) (and (equal? sent '(sent sent sent sent sent sent sent sent sent sent)) (= count (* 10 (string-length text)))))))))

;; A connection that another thread closes, while the first waits to write in `close-websocket`.
(parameterize ((close-timeout 0.3))
  (let* ((writes -1)
         (out (make-output-port (lambda (text) (set! writes (+ writes 1)) (when (> writes 0) (pause 60000))) void))
         (ws (websocket-accept (open-input-string (string-append request (frame #x81 (bytes #xff)))) out))
         (first (in-thread (lambda () (close-websocket ws) 'closed))))
    (check #t (wait-until (lambda () (= writes 1))))
    (close-websocket ws)
    (check 'closed (wait-for first))))

;; A handler that is killed: its connection is collected.
(let ((thread (in-thread (lambda () (receive (in out) (tcp-accept listener) (with-websocket echo in out)))))
      (client (websocket-connect uri)))
  (send-message "x" 'text client)
  (receive-message client)
  (kill thread)
  (pause 20)
  (parameterize ((close-timeout 1)) (void))
  (set! client #f))

;;; Timeouts

(parameterize ((connection-timeout 0.3) (ping-interval 0.1))
  ;; A peer that answers Pings stays.
  (check '((1 connection-close) "late")
         (both echo-on
               (lambda ()
                 (with-client-websocket
                  uri
                  (lambda ()
                    (let ((thread (in-thread (let ((ws (current-websocket))) (lambda () (receive-message ws))))))
                      (pause 1000)
                      (send-message "late")
                      (wait-for thread))))))))
(parameterize ((connection-timeout 1) (ping-interval 0.2))
  ;; So does one whose server only sends, also over ports that are no sockets, and with a message that the server has not taken.
  (for-each
   (lambda (wrap-in wrap-out messages)
     (check `((sent open ,@messages) 25)
            (both (lambda (in out)
                    (with-websocket
                     (lambda ()
                       (let ((ws (current-websocket)))
                         (let loop ((n 0))
                           (when (< n 25)
                             (send-message "tick")
                             (pause 100)
                             (loop (+ n 1))))
                         `(sent ,(if (websocket-open? ws) 'open 'closed)
                                ,@(map (lambda (_) (receive (message type) (receive-message) message)) messages))))
                     (wrap-in in) (wrap-out out)))
                  (lambda ()
                    (with-client-websocket
                     uri
                     (lambda ()
                       (for-each send-message messages)
                       (let loop ((n 0))
                         (receive (message type) (receive-message)
                           (if (eq? type 'text) (loop (+ n 1)) n)))))))))
   (list values values not-a-socket-in not-a-socket-in)
   (list values values not-a-socket-out not-a-socket-out)
   '(() ("one" "two") () ("one" "two"))))
;; What was handled takes no memory, although there was always more that was not.
(foreign-declare "#include \"../glue.h\"\n")
(define is-compact
  (foreign-lambda* bool ()
    "wls self = {0};
     uint8_t bytes[1000] = {0};
     for (int i = 0; i < 1000 && wls_feed(&self, bytes, sizeof bytes); i++)
         self.at = self.end - 1;
     free(self.buffer);
     C_return(self.end == sizeof bytes + 1);"))
(check #t (is-compact))
;; While more is unread than is kept, a peer whose host answers stays, and one whose host is gone does not: nothing arrives from it any more.
(foreign-declare "#include <linux/filter.h>\n#include <sys/socket.h>\n")
(define drop-all
  (foreign-lambda* int ((int fd))
    "struct sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
     struct sock_fprog program = {1, &drop};
     C_return(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));"))
(define drop-none
  (foreign-lambda* int ((int fd)) "int unused = 0; C_return(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused));"))
(parameterize ((connection-timeout 1) (ping-interval 0.2) (close-timeout 0.3))
  (for-each
   (lambda (is-gone)
     (check (list (if is-gone 'lost 'sent) 'silent)
            (let ((frame (string-append (bytes 130 254 255 255 0 0 0 0) (make-string 65535 #\x))))
              (beside-silent-peer
               (lambda (in out)
                 (with-websocket
                  (lambda ()
                    (pause 1500)
                    (when is-gone (drop-all (port->fileno in)))
                    (let loop ((n 0))
                      (cond ((= n (if is-gone 300 30)) 'sent)
                            ((condition-case (begin (send-message "tick") #t) ((websocket) #f)) (pause 100) (loop (+ n 1)))
                            (else 'lost))))
                  in out))
               frame frame frame))))
   '(#f #t)))
;; Without pings nothing has to be acknowledged: a peer whose packets are late stays, also while more is unread than is kept.
(parameterize ((connection-timeout 1) (ping-interval 0))
  (check '((65535 65535 65535 65535) connection-close)
         (both (lambda (in out)
                 (with-websocket
                  (lambda ()
                    (pause 2500)
                    (drop-all (port->fileno in))
                    (pause 3000)
                    (drop-none (port->fileno in))
                    (map (lambda (_) (receive (message type) (receive-message) (string-length message))) '(1 2 3 4)))
                  in out))
               (lambda ()
                 (parameterize ((connection-timeout 0) (permessage-deflate #f))
                   (with-client-websocket
                    uri
                    (lambda ()
                      (for-each (lambda (n) (send-message (make-string 65535 #\x))) '(1 2 3 4))
                      (receive (message type) (receive-message) type))))))))
;; The connection of a handler that is killed is closed, although its peer answers Pings.
(parameterize ((connection-timeout 1) (ping-interval 0.2))
  (check '(connection-close #t)
         (let* ((ports #f)
                (thread (in-thread (lambda () (receive (in out) (tcp-accept listener) (set! ports (list in out)) (with-websocket echo in out)))))
                (client (websocket-connect uri)))
           (send-message "x" 'text client)
           (receive-message client)
           (kill thread)
           (let ((type (wait-for (in-thread (lambda () (receive (message type) (receive-message client) type))))))
             (close-websocket client)
             (list type (wait-until (lambda () (and (port-closed? (car ports)) (port-closed? (cadr ports))))))))))
(parameterize ((connection-timeout 0.3) (ping-interval 0) (propagate-common-errors #t))
  ;; A silent one does not.
  (check '(connection-timeout silent)
         (beside-silent-peer
          (lambda (in out)
            (condition-case (with-websocket echo in out) (exn (websocket connection-timeout) 'connection-timeout))))))
(parameterize ((close-timeout 0.3))
  ;; A peer that does not answer Close.
  (check '(done silent) (beside-silent-peer (lambda (in out) (with-websocket (lambda () 'done) in out)))))

;; The limits hold on ports that know none: those of TLS behave as these.
(define (stall) (pause 60000) (stall))

;; A port with the peer's text, and then silence.
(define (silent-port text)
  (let ((left (string->list text)))
    (make-input-port (lambda ()
                       (when (null? left) (stall))
                       (let ((next (car left))) (set! left (cdr left)) next))
                     (lambda () (pair? left))
                     void)))

;; A port that takes as many writes, and then nothing.
(define (stuck-port writes)
  (make-output-port (lambda (text) (if (= writes 0) (stall) (set! writes (- writes 1)))) void))

(define (broken . ignored) (error "broken"))

;; The kind of the condition, or the result, if it comes long before another limit.
(define (soon thunk)
  (let* ((begin-ms (current-process-milliseconds))
         (result (condition-case (thunk)
                   ((websocket connection-timeout) 'connection-timeout)
                   ((websocket connection-closed) 'connection-closed)
                   (exn (exn) (get-condition-property exn 'exn 'message)))))
    (if (< (- (current-process-milliseconds) begin-ms) 15000) result 'late)))

(parameterize ((close-timeout 0.3))
  (let ((ws (websocket-accept (silent-port request) (open-output-string))))
    (check 'closed (soon (lambda () (close-websocket ws) 'closed)))))
(parameterize ((connection-timeout 0.5) (ping-interval 0.1) (propagate-common-errors #t))
  (for-each
   (lambda (with-some-websocket)
     (let ((out (open-output-string)))
       (check 'connection-timeout (soon (lambda () (with-some-websocket receive-message (silent-port request) out))))
       (check #t (and (substring-index (bytes #x89) (get-output-string out)) #t))))
   (list with-websocket with-concurrent-websocket))
  ;; An application that does not receive, not even what arrived before the silence.
  (for-each
   (lambda (input)
     (check 'closed
            (soon (lambda ()
                    (with-websocket
                     (lambda () (let ((ws (current-websocket))) (wait-until (lambda () (not (websocket-open? ws)))) 'closed))
                     (silent-port (string-append request input)) (open-output-string))))))
   (list "" (frame #x81 "one") (string-append (frame #x81 "one") (frame #x81 "two")))))
(parameterize ((connection-timeout 0.3))
  (check 'connection-timeout (soon (lambda () (websocket-accept (silent-port "GET / HTTP/1.1\r\n") (open-output-string)))))
  (check 'connection-timeout (soon (lambda () (websocket-client (silent-port "") (open-output-string) "h" "/"))))
  (check 'connection-timeout (soon (lambda () (websocket-client (open-input-string "") (stuck-port 0) "h" "/"))))
  (check 'connection-closed (soon (lambda () (send-message "x" 'text (websocket-accept (silent-port request) (stuck-port 1)))))))
;; Errors of ports.
(check "broken" (soon (lambda () (websocket-client (open-input-string "") (make-output-port broken void) "h" "/"))))
(check "broken" (soon (lambda () (websocket-client (make-input-port broken broken void) (open-output-string) "h" "/"))))
(let ((ws (websocket-accept (silent-port request)
                            (let ((writes 0)) (make-output-port (lambda (text) (set! writes (+ writes 1)) (when (> writes 1) (broken))) void)))))
  (check 'connection-closed (soon (lambda () (send-message "x" 'text ws))))
  (check 'closed (soon (lambda () (close-websocket ws) 'closed))))

;;; Garbage collection in the middle, and nothing is left

(check '((50 connection-close) 50)
       (both echo-on
             (lambda ()
               (with-client-websocket
                uri
                (lambda ()
                  (let loop ((n 0))
                    (if (< n 50)
                        (let ((text (make-string (* n 1000) (integer->char (+ 32 n)))))
                          (send-message text)
                          (gc #t)
                          (receive (message type) (receive-message)
                            (gc #t)
                            (if (string=? message text) (loop (+ n 1)) n)))
                        n)))))))

(let loop ((n 0))
  (when (< n 200)
    (websocket-accept (open-input-string request) (open-output-string))
    (loop (+ n 1))))
(check #t (wait-until (lambda () (gc #t) (= (live-websockets) 0))))

(print checks " checks, " failures " failures")
(exit (if (= failures 0) 0 1))
